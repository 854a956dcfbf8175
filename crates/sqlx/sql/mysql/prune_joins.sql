-- Deletes joins with their steps and waits: see routines/prune_joins.sql.
-- joins
call /*:*/prune_joins(?)
