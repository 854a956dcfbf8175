-- Takes messages back whose lease has run out, in one conditional change: see routines/keep.sql.
-- $1 limit, $2 most lease losses
select ready, join_id, status, expected_steps, completed_steps, failed_steps, dead
from /*:*/reap_all($1::bigint, $2::bigint::integer)
