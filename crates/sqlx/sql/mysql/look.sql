-- What a join is now, in the form of routines/join_answer.sql.
-- join
select j.join_id is null, null, 0, false, j.status, j.expected_steps, j.attached_steps, j.completed_steps,
       j.failed_steps, greatest(0, timestampdiff(microsecond, utc_timestamp(6), j.expires_at))
from (select 1 as one) single left join /*:*/outbox_join j on j.join_id = ?
