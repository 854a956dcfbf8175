-- The statements of the Rust code as functions, for programs in other languages. Their text is the very same.
create or replace function /*:*/claim(
    worker text, max_messages bigint default 50, lease interval default interval '30 seconds',
    topics text[] default null, topic_prefixes text[] default null
)
returns table (
    seq bigint, epoch integer, message_id uuid, topic text, key text, order_policy smallint, payload bytea,
    content_type text, headers text, correlation_id text, aggregate_type text, aggregate_id text, tenant_id text,
    priority smallint, attempts integer, lease_losses integer, occurred_at timestamptz, created_at timestamptz,
    due_at timestamptz, expires_at timestamptz
)
language sql volatile
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
as $body$
/*include claim*/
$body$;
