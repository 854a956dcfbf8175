-- Gives messages up.
-- ?1 seqs, ?2 reason
update /*:*/outbox
set state = 3, waiting = 0, done_at = cast((julianday('now') - 2440587.5) * 86400000000 as integer), error_class = 8, last_error = ?2,
    due_at = case when due_at = 9223372036854775807 then cast((julianday('now') - 2440587.5) * 86400000000 as integer) else due_at end
where seq in (select value from json_each(?1)) and state in (0, 3)
