-- Registers a message that waits for a join: see routines/joins.sql.
-- $1 join, $2 message
select * from /*:*/wait_for_join($1::uuid, $2::uuid)
