-- Takes back that messages had failed: see routines/joins.sql.
-- $1 messages
select /*:*/uncount_steps($1::uuid[])
