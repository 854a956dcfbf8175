-- Counts a step by hand, in the transaction of its caller. The first row that it answers is what happened: 0 done, 1 there
-- is no such join, 2 the message is not a step of it.
-- ?1 join, ?2 message, ?3 1 completed, 2 failed
update /*:*/outbox_join as j
set completed_steps = j.completed_steps + (?3 = 1),
    failed_steps = j.failed_steps + (?3 = 2),
    updated_at = cast((julianday('now') - 2440587.5) * 86400000000 as integer),
    ended_at = case when j.completed_steps + j.failed_steps + 1 >= j.expected_steps then cast((julianday('now') - 2440587.5) * 86400000000 as integer) end,
    status = case when j.completed_steps + j.failed_steps + 1 < j.expected_steps then 0
                  when j.failed_steps + (?3 = 2) > 0 then 2
                  else 1 end
where j.join_id = ?1 and j.status = 0 and exists (
    select 1 from /*:*/outbox_join_member m where m.join_id = ?1 and m.message_id = ?2 and m.status = 0)
returning 0, null, 1, status <> 0, status, expected_steps, attached_steps, completed_steps, failed_steps, null;

-- If the join has ended, what waits for it is due.
update /*:*/outbox
set due_at = cast((julianday('now') - 2440587.5) * 86400000000 as integer)
where changes() > 0 and state = 0 and due_at > cast((julianday('now') - 2440587.5) * 86400000000 as integer) and due_at < 9223372036854775807
  and message_id in (
      select w.message_id from /*:*/outbox_join_wait w join /*:*/outbox_join j on j.join_id = w.join_id
      where w.continued_at is null and j.status <> 0 and w.join_id = ?1);

-- Only a cancelled or expired join has pending steps left: those are late.
update /*:*/outbox_join_member
set status = ?3 + (select case when j.status in (3, 4) then 2 else 0 end from /*:*/outbox_join j where j.join_id = ?1),
    updated_at = cast((julianday('now') - 2440587.5) * 86400000000 as integer)
where join_id = ?1 and message_id = ?2 and status = 0;

select case when j.join_id is null then 1 when m.message_id is null then 2 else 0 end,
       ?2, 0, false, j.status, j.expected_steps, j.attached_steps, j.completed_steps, j.failed_steps, null
from (select ?1 as join_id) a
left join /*:*/outbox_join j on j.join_id = a.join_id
left join /*:*/outbox_join_member m on m.join_id = a.join_id and m.message_id = ?2
