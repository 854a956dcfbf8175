-- Takes back that messages had failed: see routines/uncount_steps.sql.
-- messages
call /*:*/uncount_steps(?)
