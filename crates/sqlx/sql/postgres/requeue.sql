-- Gives dead messages another chance, by their due time: their place in the order of publishing is gone. Their last error stays in the
-- history only.
-- $1 seqs
update /*:*/outbox
set state = 0, attempts = 0, lease_losses = 0, failing_since = null, born = null,
    last_error = null, error_class = null, due_at = statement_timestamp(), done_at = null,
    expires_at = case when expires_at > statement_timestamp() then expires_at end
where seq = any($1::bigint[]) and state = 3
