-- Stores one message, as enqueue.sql stores a batch: no row if its id or dedup key is stored already, and the caller's
-- transaction goes on. A statement of its own, because it is what most publishers send: with plain values nothing has to be
-- unfolded, and nothing answered.
-- $1 id, $2 topic, $3 order policy, $4 dedup hash, $5 payload, $6 content type, $7 headers, $8 correlation id,
-- $9 aggregate type, $10 aggregate id, $11 tenant, $12 priority, $13 occurred at (µs), $14 key, $15 due in (µs) or
-- $16 at (µs), $17 expires in (µs) or $18 at (µs); null: now, never
insert into /*:*/outbox (
    message_id, topic, order_policy, dedup, payload, content_type, headers, correlation_id, aggregate_type, aggregate_id,
    tenant_id, priority, occurred_at, key, created_at, due_at, expires_at, born, state, epoch, attempts, lease_losses
)
values (
    $1::uuid, $2::text, $3::smallint, $4::bytea, $5::bytea, $6::text, $7::text, $8::text, $9::text, $10::text, $11::text,
    $12::smallint, timestamptz 'epoch' + $13::bigint::float8 * interval '1 microsecond', $14::text,
    statement_timestamp(),
    greatest(statement_timestamp(), statement_timestamp() + $15::bigint::float8 * interval '1 microsecond',
             timestamptz 'epoch' + $16::bigint::float8 * interval '1 microsecond'),
    coalesce(statement_timestamp() + $17::bigint::float8 * interval '1 microsecond',
             timestamptz 'epoch' + $18::bigint::float8 * interval '1 microsecond'),
    case when $15::bigint > 0 or timestamptz 'epoch' + $16::bigint::float8 * interval '1 microsecond' > statement_timestamp() then null
         else pg_current_xact_id() end,
    0, 0, 0, 0
)
on conflict do nothing
