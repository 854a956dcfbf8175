-- Ends a pending join: see routines/end_join.sql.
-- join
call /*:*/end_join(?, false)
