-- Counts a step by hand: see routines/report_step.sql.
-- join, message, 1 completed or 2 failed
call /*:*/report_step(?, ?, ?, false)
