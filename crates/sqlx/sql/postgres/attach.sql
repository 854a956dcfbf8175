-- Makes messages steps of a join: see routines/joins.sql.
-- $1 join, $2 messages
select * from /*:*/attach_steps($1::uuid, $2::uuid[])
