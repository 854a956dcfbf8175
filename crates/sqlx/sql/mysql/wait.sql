-- Registers a message that waits for a join: see routines/wait_for_join.sql.
-- join, message
call /*:*/wait_for_join(?, ?, false)
