-- Makes messages steps of a join: see routines/attach_steps.sql.
-- join, messages
call /*:*/attach_steps(?, ?, false)
