-- A join.
-- $1 id
select join_id, grouping_key, status, expected_steps, attached_steps, completed_steps, failed_steps, metadata, created_at,
       updated_at, ended_at, expires_at
from /*:*/outbox_join where join_id = $1
