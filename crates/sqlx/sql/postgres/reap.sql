-- Takes messages back whose lease has run out, in one conditional change; the lock waits for nobody, and looks at the
-- condition again once it is held.
-- $1 limit, $2 most lease losses
with lost as materialized (
    select seq from /*:*/outbox
    where state = 1 and leased_until < statement_timestamp()
    order by leased_until, seq
    limit $1
    for update skip locked
),
reaped as (
    update /*:*/outbox o
    set lease_losses = o.lease_losses + 1,
        state = case when o.lease_losses + 1 >= $2::integer then 3 else 0 end,
        due_at = case when o.lease_losses + 1 >= $2::integer then o.due_at else statement_timestamp() end,
        done_at = case when o.lease_losses + 1 >= $2::integer then statement_timestamp() end,
        error_class = case when o.lease_losses + 1 >= $2::integer then 7 else o.error_class end,
        last_error = case when o.lease_losses + 1 >= $2::integer then 'crash suspect' else o.last_error end,
        leased_until = null,
        worker = null
    where o.seq = any(array(select seq from lost))
    returning o.state
)
select count(*) filter (where state = 0) as ready, count(*) filter (where state = 3) as dead from reaped
