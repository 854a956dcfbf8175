-- Counts what became of messages in their joins: see routines/count_steps.sql.
-- messages and what became of each, [[id, 1 done | 2 dead | 0 deferred], ..]
call /*:*/count_steps(?, utc_timestamp(6))
