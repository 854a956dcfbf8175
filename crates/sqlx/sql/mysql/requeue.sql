-- Gives dead messages another chance. Their last error stays in the history only.
-- seqs
update json_table(?, '$[*]' columns (seq bigint path '$')) s straight_join /*:*/outbox o on o.seq = s.seq
set o.state = 0, o.attempts = 0, o.lease_losses = 0, o.failing_since = null,
    o.last_error = null, o.error_class = null, o.due_at = utc_timestamp(6), o.done_at = null,
    o.expires_at = if(o.expires_at > utc_timestamp(6), o.expires_at, null)
where o.state = 3
