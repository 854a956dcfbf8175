-- Counts what became of messages in their joins: see routines/joins.sql.
-- $1 messages, $2 what became of each: 1 done, 2 dead, 0 deferred
select null::bigint, c.* from /*:*/count_steps($1::uuid[], $2::smallint[]) c
