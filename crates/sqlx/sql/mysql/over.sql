-- The messages whose retention is over: see routines/over.sql.
-- done are kept for (µs), dead are kept for (µs; null: for ever), limit
call /*:*/over(?, ?, ?)
