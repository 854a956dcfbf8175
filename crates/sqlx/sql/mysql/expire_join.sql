-- Ends a join if its deadline has passed: see routines/expire_join.sql.
-- join
call /*:*/expire_join(?)
