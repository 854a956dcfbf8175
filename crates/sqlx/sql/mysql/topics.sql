-- The same by topic: see routines/topics.sql.
-- cap
call /*:*/topics(?)
