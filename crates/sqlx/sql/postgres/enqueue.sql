-- Stores a batch of which some are born leased, for a worker that publishes to itself; for all others see shortcuts/batch.sql. A
-- message whose id or dedup key is stored already is left out of the answer, and the caller's transaction goes on.
-- $1 ids, $2 topics, $3 keys, $4 order policies, $5 dedup hashes, $6 payloads, $7 content types, $8 headers,
-- $9 correlation ids, $10 aggregate types, $11 aggregate ids, $12 tenants, $13 priorities, $14 occurred at (µs),
-- $15 due in (µs) or $16 at (µs), $17 expires in (µs) or $18 at (µs); null: now, never, $19 born leased, $20 worker, $21 lease, $22 epoch
-- Microseconds are multiplied as float8, exactly up to 285 years: PostgreSQL has that operator, and no other role's is nearer.
insert into /*:*/outbox (
    message_id, topic, key, order_policy, dedup, payload, content_type, headers, correlation_id, aggregate_type,
    aggregate_id, tenant_id, priority, occurred_at, created_at, due_at, expires_at, born, state, epoch, worker, leased_until,
    attempts, lease_losses
)
select
    m.message_id, m.topic, m.key, m.order_policy, m.dedup, m.payload, m.content_type, m.headers, m.correlation_id,
    m.aggregate_type, m.aggregate_id, m.tenant_id, m.priority,
    timestamptz 'epoch' + m.occurred::float8 * interval '1 microsecond',
    statement_timestamp(),
    greatest(statement_timestamp(), statement_timestamp() + m.due_in::float8 * interval '1 microsecond',
             timestamptz 'epoch' + m.due::float8 * interval '1 microsecond'),
    coalesce(statement_timestamp() + m.expires_in::float8 * interval '1 microsecond',
             timestamptz 'epoch' + m.expires::float8 * interval '1 microsecond'),
    case when m.leased or m.due_in > 0 or timestamptz 'epoch' + m.due::float8 * interval '1 microsecond' > statement_timestamp()
         then null else pg_current_xact_id() end,
    case when m.leased then 1 else 0 end,
    case when m.leased then $22::integer else 0 end,
    case when m.leased then $20::text end,
    case when m.leased then statement_timestamp() + $21::interval end,
    0, 0
from unnest(
    $1::uuid[], $2::text[], $3::text[], $4::smallint[], $5::bytea[], $6::bytea[], $7::text[], $8::text[], $9::text[],
    $10::text[], $11::text[], $12::text[], $13::smallint[], $14::bigint[], $15::bigint[], $16::bigint[],
    $17::bigint[], $18::bigint[], $19::boolean[]
) with ordinality as m (
    message_id, topic, key, order_policy, dedup, payload, content_type, headers, correlation_id, aggregate_type,
    aggregate_id, tenant_id, priority, occurred, due_in, due, expires_in, expires, leased, n
)
order by m.n
on conflict do nothing
returning message_id, seq, epoch
