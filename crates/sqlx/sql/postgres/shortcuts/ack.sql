-- Acks messages: see routines/settle.sql.
-- $1 the first seq of each run of neighbours with one token, $2 the last, $3 the token, $4 whether done messages are kept
select settled, join_id, status, expected_steps, completed_steps, failed_steps
from /*:*/ack_all($1::bigint[], $2::bigint[], $3::integer[], $4::boolean)
