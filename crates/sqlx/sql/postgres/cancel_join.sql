-- Ends a pending join: see routines/joins.sql.
-- $1 join
select * from /*:*/end_join($1::uuid)
