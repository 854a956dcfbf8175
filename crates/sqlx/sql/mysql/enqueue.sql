-- Stores a batch, or nothing of it if one of its messages is stored already (1062): what stands between the marks is repeated for
-- every message. Unlike `on duplicate key update`, that takes no exclusive lock on the stored one, over which callers with the
-- same dedup key would deadlock; unlike `insert ignore`, it says so, and does not make other numbers of those that do not fit.
-- A time is two values: whether it counts from now, and microseconds.
insert into /*:*/outbox (
    message_id, topic, `key`, order_policy, dedup, payload, content_type, headers, correlation_id, aggregate_type,
    aggregate_id, tenant_id, priority, occurred_at, created_at, due_at, expires_at, state, epoch, worker, leased_until,
    attempts, lease_losses
) values
/*rows*/(
    ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?,
    timestamp '1970-01-01 00:00:00' + interval ? microsecond,
    utc_timestamp(6),
    greatest(utc_timestamp(6),
        if(?, utc_timestamp(6), timestamp '1970-01-01 00:00:00.000000') + interval ? microsecond),
    if(?, utc_timestamp(6), timestamp '1970-01-01 00:00:00.000000') + interval ? microsecond,
    ?, ?, ?,
    utc_timestamp(6) + interval ? microsecond,
    0, 0
)/*end*/
