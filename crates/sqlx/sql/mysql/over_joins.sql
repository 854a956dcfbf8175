-- The joins whose retention is over: see routines/over_joins.sql.
-- kept for (µs), limit
call /*:*/over_joins(?, ?)
