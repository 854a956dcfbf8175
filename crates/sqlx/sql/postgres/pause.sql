-- Pauses topics: answers with one row, or with none if the very same are paused already.
-- $1 topics, $2 who, $3 why
insert into /*:*/outbox_pause (topics, by_whom, why, since)
values ($1::text, $2::text, $3::text, statement_timestamp())
on conflict do nothing
returning true
