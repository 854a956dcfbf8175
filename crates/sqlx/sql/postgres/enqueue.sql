-- Stores a batch. A message whose id or dedup key is stored already is left out of the answer, and the caller's
-- transaction goes on.
-- $1 ids, $2 topics, $3 keys, $4 order policies, $5 dedup hashes, $6 payloads, $7 content types, $8 headers,
-- $9 correlation ids, $10 aggregate types, $11 aggregate ids, $12 tenants, $13 priorities, $14 occurred at (µs),
-- $15 due (µs), $16 due counts from now, $17 expires (µs), $18 expires counts from now, $19 born leased,
-- $20 worker, $21 lease
insert into /*:*/outbox (
    message_id, topic, key, order_policy, dedup, payload, content_type, headers, correlation_id, aggregate_type,
    aggregate_id, tenant_id, priority, occurred_at, created_at, due_at, expires_at, state, epoch, worker, leased_until,
    attempts, lease_losses
)
select
    m.message_id, m.topic, m.key, m.order_policy, m.dedup, m.payload, m.content_type, m.headers, m.correlation_id,
    m.aggregate_type, m.aggregate_id, m.tenant_id, m.priority,
    timestamptz 'epoch' + m.occurred * interval '1 microsecond',
    statement_timestamp(),
    case when m.due is null then statement_timestamp()
         else greatest(statement_timestamp(),
             case when m.due_from_now then statement_timestamp() else timestamptz 'epoch' end
             + m.due * interval '1 microsecond') end,
    case when m.expires_from_now then statement_timestamp() else timestamptz 'epoch' end
        + m.expires * interval '1 microsecond',
    case when m.leased then 1 else 0 end,
    case when m.leased then 1 else 0 end,
    case when m.leased then $20::text end,
    case when m.leased then statement_timestamp() + $21::interval end,
    0, 0
from unnest(
    $1::uuid[], $2::text[], $3::text[], $4::smallint[], $5::bytea[], $6::bytea[], $7::text[], $8::text[], $9::text[],
    $10::text[], $11::text[], $12::text[], $13::smallint[], $14::bigint[], $15::bigint[], $16::boolean[],
    $17::bigint[], $18::boolean[], $19::boolean[]
) with ordinality as m (
    message_id, topic, key, order_policy, dedup, payload, content_type, headers, correlation_id, aggregate_type,
    aggregate_id, tenant_id, priority, occurred, due, due_from_now, expires, expires_from_now, leased, n
)
order by m.n
on conflict do nothing
returning message_id, seq, epoch
