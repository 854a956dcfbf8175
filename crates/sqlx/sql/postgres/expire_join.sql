-- Ends a join if its deadline has passed: see routines/joins.sql.
-- $1 join
select null::bigint, j.* from /*:*/expire_joins(1, $1::uuid) j
