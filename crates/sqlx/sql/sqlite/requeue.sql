-- Gives dead messages another chance. Their last error stays in the history only.
-- ?1 seqs
update /*:*/outbox
set state = 0, waiting = 0, attempts = 0, lease_losses = 0, failing_since = null,
    last_error = null, error_class = null, done_at = null,
    due_at = cast((julianday('now') - 2440587.5) * 86400000000 as integer),
    expires_at = case when expires_at > cast((julianday('now') - 2440587.5) * 86400000000 as integer) then expires_at end
where seq in (select value from json_each(?1)) and state = 3
