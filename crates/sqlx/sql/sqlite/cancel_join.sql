-- Ends a pending join, in the transaction of its caller. The first row that it answers is what happened: 0 done, 1 there is
-- no such join.
-- ?1 join
update /*:*/outbox_join
set status = 3, updated_at = cast((julianday('now') - 2440587.5) * 86400000000 as integer), ended_at = cast((julianday('now') - 2440587.5) * 86400000000 as integer)
where join_id = ?1 and status = 0
returning 0, null, 0, true, status, expected_steps, attached_steps, completed_steps, failed_steps, null;

-- If the join has ended, what waits for it is due.
update /*:*/outbox
set due_at = cast((julianday('now') - 2440587.5) * 86400000000 as integer)
where changes() > 0 and state = 0 and due_at > cast((julianday('now') - 2440587.5) * 86400000000 as integer) and due_at < 9223372036854775807
  and message_id in (
      select w.message_id from /*:*/outbox_join_wait w join /*:*/outbox_join j on j.join_id = w.join_id
      where w.continued_at is null and j.status <> 0 and w.join_id = ?1);

select j.join_id is null, null, 0, false, j.status, j.expected_steps, j.attached_steps, j.completed_steps,
       j.failed_steps, null
from (select ?1 as join_id) a left join /*:*/outbox_join j on j.join_id = a.join_id
