-- Stores a batch: what stands between the marks is repeated for every message. A message whose id or dedup key is
-- stored already is left out of the answer, and the caller's transaction goes on.
-- A time is two values: whether it counts from now, and microseconds.
insert into /*:*/outbox (
    message_id, topic, key, order_policy, dedup, payload, content_type, headers, correlation_id, aggregate_type,
    aggregate_id, tenant_id, priority, occurred_at, created_at, due_at, expires_at, state, epoch, worker, leased_until,
    attempts, lease_losses
) values
/*rows*/(
    ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?,
    cast((julianday('now') - 2440587.5) * 86400000000 as integer),
    max(cast((julianday('now') - 2440587.5) * 86400000000 as integer), ? * cast((julianday('now') - 2440587.5) * 86400000000 as integer) + ?),
    ? * cast((julianday('now') - 2440587.5) * 86400000000 as integer) + ?,
    ?, ?, ?,
    cast((julianday('now') - 2440587.5) * 86400000000 as integer) + ?,
    0, 0
)/*end*/
on conflict do nothing
returning message_id, seq, epoch
