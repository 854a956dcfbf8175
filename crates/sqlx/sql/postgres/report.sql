-- Counts a step by hand: see routines/joins.sql.
-- $1 join, $2 message, $3 1 completed, 2 failed
select * from /*:*/report_step($1::uuid, $2::uuid, $3::smallint)
