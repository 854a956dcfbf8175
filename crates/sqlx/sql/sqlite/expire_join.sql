-- Ends a join if its deadline has passed; what waits for it is due. In the one transaction that its caller holds.
-- ?1 join, ?2 what time it is
update /*:*/outbox
set due_at = ?2
where state = 0 and due_at > ?2 and due_at < 9223372036854775807
  and message_id in (
      select w.message_id from /*:*/outbox_join_wait w join /*:*/outbox_join j on j.join_id = w.join_id
      where w.continued_at is null and j.status = 0 and j.expires_at <= ?2 and w.join_id = ?1);

update /*:*/outbox_join
set status = 4, updated_at = ?2, ended_at = ?2
where join_id = ?1 and status = 0 and expires_at <= ?2
returning null, join_id, status, expected_steps, completed_steps, failed_steps
