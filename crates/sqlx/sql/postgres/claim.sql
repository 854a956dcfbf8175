-- Takes messages that can start now: see routines/claim.sql.
-- $1 worker, $2 limit, $3 lease, $4 topics (null with $5 null: all), $5 beginnings of topics
select c.seq, t.token, c.message_id, c.topic, c.key, c.order_policy, c.payload, c.content_type, c.headers, c.correlation_id,
       c.aggregate_type, c.aggregate_id, c.tenant_id, c.priority, c.attempts, c.lease_losses, c.occurred_at, c.created_at,
       c.due_at, c.expires_at, c.failing_since, c.handled
from (select /*:*/new_token() as token) t
cross join lateral /*:*/claim_all(
    $1::text, $2::bigint, $3::interval, $4::text[], $5::text[], t.token, true) c
