-- Registers a message that waits for a join, and answers what the join is now: 0 in front, or 1 if there is no such join.
-- ?1 join, ?2 message
insert into /*:*/outbox_join_wait (join_id, message_id)
select j.join_id, ?2 from /*:*/outbox_join j where j.join_id = ?1
on conflict do nothing;

select j.join_id is null, null, 0, false, j.status, j.expected_steps, j.attached_steps, j.completed_steps,
       j.failed_steps, max(0, j.expires_at - cast((julianday('now') - 2440587.5) * 86400000000 as integer))
from (select ?1 as join_id) a left join /*:*/outbox_join j on j.join_id = a.join_id
