-- The messages that stand in the way of these ids and dedup hashes.
-- ?1 ids, ?2 dedup hashes, both in hexadecimal
select message_id, dedup from /*:*/outbox where message_id in (select unhex(value) from json_each(?1))
union all
select message_id, dedup from /*:*/outbox where dedup in (select unhex(value) from json_each(?2))
