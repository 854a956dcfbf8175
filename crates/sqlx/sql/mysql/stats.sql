-- How many messages are in which state, counted up to a cap along the indexes, so that a look at a long queue costs no
-- more than one at a short one: see routines/stats.sql.
-- cap
call /*:*/stats(?)
