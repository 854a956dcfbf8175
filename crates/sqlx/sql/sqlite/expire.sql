-- Gives up messages that nobody claimed before their expiry.
-- ?1 limit
update /*:*/outbox
set state = 3, done_at = cast(unixepoch('subsec') * 1000000 as integer), error_class = 6, last_error = 'expired',
    due_at = case when due_at = 9223372036854775807 then cast(unixepoch('subsec') * 1000000 as integer) else due_at end
where seq in (
    select seq from /*:*/outbox
    where state = 0 and expires_at <= cast(unixepoch('subsec') * 1000000 as integer)
    order by expires_at, seq
    limit ?1
)
returning 1
