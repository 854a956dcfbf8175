-- The messages that stand in the way of these ids and dedup hashes.
-- $1 ids, $2 dedup hashes
select message_id, dedup from /*:*/outbox where message_id = any($1::uuid[])
union all
select message_id, dedup from /*:*/outbox where dedup = any($2::bytea[])
