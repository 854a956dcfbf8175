-- Gives dead messages another chance.
-- ?1 seqs
update /*:*/outbox
set state = 0, attempts = 0, lease_losses = 0, failing_since = null, done_at = null,
    due_at = cast(unixepoch('subsec') * 1000000 as integer),
    expires_at = case when expires_at > cast(unixepoch('subsec') * 1000000 as integer) then expires_at end
where seq in (select value from json_each(?1)) and state = 3
