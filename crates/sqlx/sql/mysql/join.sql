-- A join.
-- id
select join_id, grouping_key, status, expected_steps, attached_steps, completed_steps, failed_steps, metadata,
       timestampdiff(microsecond, '1970-01-01', created_at), timestampdiff(microsecond, '1970-01-01', updated_at),
       timestampdiff(microsecond, '1970-01-01', ended_at), timestampdiff(microsecond, '1970-01-01', expires_at)
from /*:*/outbox_join where join_id = ?
