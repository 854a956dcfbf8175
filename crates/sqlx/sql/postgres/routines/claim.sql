-- The statements of the Rust code as functions, for programs in other languages. Their text is the very same.
-- Topics are named in full, or by their beginning and a *, as in order.*; null means all.
create or replace function /*:*/claim(
    worker text, max_messages bigint default 50, lease interval default interval '30 seconds',
    topics text[] default null, topic_prefixes text[] default null
)
returns table (
    seq bigint, epoch integer, message_id uuid, topic text, key text, order_policy smallint, payload bytea,
    content_type text, headers text, correlation_id text, aggregate_type text, aggregate_id text, tenant_id text,
    priority smallint, attempts integer, lease_losses integer, occurred_at timestamptz, created_at timestamptz,
    due_at timestamptz, expires_at timestamptz, failing_since timestamptz, handled text
)
language plpgsql volatile
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
as $body$
#variable_conflict use_column
begin
    perform /*:*/require(
        octet_length(worker) between 1 and 100, 'worker has ' || coalesce(octet_length(worker), 0) || ' bytes',
        'Give it 1 to 100 bytes.');
    perform /*:*/require(
        max_messages between 1 and 10000, 'max_messages is ' || coalesce(max_messages::text, 'null'),
        'Give it 1 to 10000.');
    perform /*:*/require_lease(lease);
    topic_prefixes := topic_prefixes || array(select left(t, -1) from unnest(topics) t where t like '%*');
    topics := case when topics is not null then array(select t from unnest(topics) t where t not like '%*') end;
    if topics is null and cardinality(topic_prefixes) = 0 then
        topic_prefixes := null;
    end if;
    return query
/*include claim*/
    ;
end
$body$;
