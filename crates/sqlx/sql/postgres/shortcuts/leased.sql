-- Stores one message that is born leased: due at once, without a key and without an expiry.
-- $1 id, $2 topic, $3 order policy, $4 dedup hash, $5 payload, $6 content type, $7 headers, $8 correlation id,
-- $9 aggregate type, $10 aggregate id, $11 tenant, $12 priority, $13 occurred at (µs), $14 worker, $15 lease, $16 epoch
insert into /*:*/outbox (
    message_id, topic, order_policy, dedup, payload, content_type, headers, correlation_id, aggregate_type, aggregate_id,
    tenant_id, priority, occurred_at, created_at, due_at, born, state, epoch, worker, leased_until, attempts, lease_losses
)
values (
    $1::uuid, $2::text, $3::smallint, $4::bytea, $5::bytea, $6::text, $7::text, $8::text, $9::text, $10::text, $11::text,
    $12::smallint, timestamptz 'epoch' + $13::bigint::float8 * interval '1 microsecond', statement_timestamp(),
    statement_timestamp(), null, 1, $16::integer, $14::text, statement_timestamp() + $15::interval, 0, 0
)
on conflict do nothing
returning seq
