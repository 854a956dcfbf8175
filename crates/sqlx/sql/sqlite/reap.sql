-- Takes messages back whose lease has run out, in one conditional change.
-- ?1 limit, ?2 most lease losses, ?3 what time it is
update /*:*/outbox
set lease_losses = lease_losses + 1,
    state = case when lease_losses + 1 >= ?2 then 3 else 0 end,
    due_at = case when lease_losses + 1 >= ?2 then due_at else ?3 end,
    done_at = case when lease_losses + 1 >= ?2 then ?3 end,
    error_class = case when lease_losses + 1 >= ?2 then 7 else error_class end,
    last_error = case when lease_losses + 1 >= ?2 then 'crash suspect' else last_error end,
    leased_until = null,
    worker = null
where seq in (
    select seq from /*:*/outbox
    where state = 1 and leased_until < ?3
    order by leased_until, seq
    limit ?1
)
returning state = 0, null, null, null, null, null, state = 3, message_id
