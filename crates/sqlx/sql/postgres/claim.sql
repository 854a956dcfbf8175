-- Takes messages that can start now: see routines/claim.sql.
-- $1 worker, $2 limit, $3 lease, $4 topics (null with $5 null: all), $5 beginnings of topics
select seq, epoch + 1, message_id, topic, key, order_policy, payload, content_type, headers, correlation_id, aggregate_type,
       aggregate_id, tenant_id, priority, attempts, lease_losses, occurred_at, created_at, due_at, expires_at,
       failing_since, handled
from /*:*/claim_all($1::text, $2::bigint, $3::interval, $4::text[], $5::text[])
