-- Remembers that a waiting message has sent its continuation: see routines/continue_join.sql.
-- join, message
call /*:*/continue_join(?, ?)
