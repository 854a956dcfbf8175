-- Gives up messages that nobody claimed before their expiry, and joins whose deadline has passed: see routines/keep.sql.
-- $1 limit
select expired, join_id, status, expected_steps, completed_steps, failed_steps from /*:*/expire_all($1::bigint)
