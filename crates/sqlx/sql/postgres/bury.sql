-- Gives messages up.
-- $1 seqs, $2 reason
update /*:*/outbox
set state = 3, done_at = statement_timestamp(), error_class = 8, last_error = $2,
    due_at = case when due_at = 'infinity' then statement_timestamp() else due_at end
where seq = any($1::bigint[]) and state in (0, 3)
