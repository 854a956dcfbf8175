-- The messages that stand in the way of these ids and dedup hashes: see routines/publish.sql.
-- $1 ids, $2 dedup hashes
select message_id, dedup from /*:*/twins($1::uuid[], $2::bytea[])
