-- Takes messages back whose lease has run out, in one conditional change.
-- ?1 limit, ?2 most lease losses
update /*:*/outbox
set lease_losses = lease_losses + 1,
    state = case when lease_losses + 1 >= ?2 then 3 else 0 end,
    due_at = case when lease_losses + 1 >= ?2 then due_at else cast(unixepoch('subsec') * 1000000 as integer) end,
    done_at = case when lease_losses + 1 >= ?2 then cast(unixepoch('subsec') * 1000000 as integer) end,
    error_class = case when lease_losses + 1 >= ?2 then 7 else error_class end,
    last_error = case when lease_losses + 1 >= ?2 then 'crash suspect' else last_error end,
    leased_until = null,
    worker = null
where seq in (
    select seq from /*:*/outbox
    where state = 1 and leased_until < cast(unixepoch('subsec') * 1000000 as integer)
    order by leased_until, seq
    limit ?1
)
returning state = 0 as ready, state = 3 as dead
