-- Pauses topics: answers with one row, or with none if the very same are paused already.
-- ?1 topics, ?2 who, ?3 why
insert into /*:*/outbox_pause (topics, by_whom, why, since)
values (?1, ?2, ?3, cast((julianday('now') - 2440587.5) * 86400000000 as integer))
on conflict do nothing
returning 1
