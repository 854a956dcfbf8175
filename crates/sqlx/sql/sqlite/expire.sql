-- Gives up joins whose deadline has passed, and messages that nobody claimed before their expiry; what waits for the joins is
-- due. In the one transaction that its caller holds.
-- ?1 limit, ?2 what time it is
update /*:*/outbox
set due_at = ?2
where state = 0 and due_at > ?2 and due_at < 9223372036854775807
  and message_id in (
      select w.message_id from /*:*/outbox_join_wait w
      where w.continued_at is null and w.join_id in (
          select join_id from /*:*/outbox_join
          where status = 0 and expires_at <= ?2
          order by expires_at, join_id
          limit ?1));

update /*:*/outbox_join
set status = 4, updated_at = ?2, ended_at = ?2
where join_id in (
    select join_id from /*:*/outbox_join
    where status = 0 and expires_at <= ?2
    order by expires_at, join_id
    limit ?1)
returning null, join_id, status, expected_steps, completed_steps, failed_steps;

update /*:*/outbox
set state = 3, waiting = 0, done_at = ?2, error_class = 6, last_error = 'expired',
    due_at = case when due_at = 9223372036854775807 then ?2 else due_at end
where seq in (
    select seq from /*:*/outbox
    where state = 0 and expires_at <= ?2
    order by expires_at, seq
    limit ?1
)
returning 1, null, null, null, null, null, true, message_id
