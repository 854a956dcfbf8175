-- Enqueueing from other languages, in the caller's transaction. Limits are in bytes, as in Rust; a message whose id or
-- dedup key is stored already is not stored again, and the answer names the stored one.
create or replace function /*:*/enqueue_bytes(
    topic text, payload bytea, key text default null, delay interval default null, due_at timestamptz default null,
    expires_in interval default null, priority integer default 0, dedup_key text default null,
    correlation_id text default null, headers jsonb default null, aggregate_type text default null,
    aggregate_id text default null, tenant_id text default null, order_policy text default 'block',
    content_type text default 'application/octet-stream', message_id uuid default null,
    max_payload_bytes integer default 1048576, out id uuid, out duplicate boolean
)
language plpgsql volatile
as $body$
declare
    v_field text;
    v_value text;
    v_max integer;
    v_policy smallint;
    v_hash bytea := sha256(convert_to(nullif(dedup_key, ''), 'UTF8'));
    v_now timestamptz := clock_timestamp();
begin
    for v_field, v_value, v_max in values
        ('topic', topic, 255), ('key', key, 255), ('correlation_id', correlation_id, 255),
        ('aggregate_type', aggregate_type, 255), ('aggregate_id', aggregate_id, 255), ('tenant_id', tenant_id, 255),
        ('content_type', content_type, 127), ('headers', headers::text, 65536)
    loop
        perform /*:*/require(
            coalesce(octet_length(v_value), 0) <= v_max,
            format('%s has %s bytes, the limit is %s', v_field, octet_length(v_value), v_max), 'Shorten it.');
    end loop;
    perform /*:*/require(topic <> '', 'topic is empty', 'Give it 1 to 255 bytes.');
    perform /*:*/require(payload is not null, 'payload is null', 'Give it an empty value if there is none.');
    perform /*:*/require(
        octet_length(payload) <= max_payload_bytes,
        format('payload has %s bytes, the limit is %s', octet_length(payload), max_payload_bytes),
        'Store the content elsewhere and publish a reference.');
    perform /*:*/require(
        headers is null or (jsonb_typeof(headers) = 'object' and not exists (
            select from jsonb_each(headers) h where jsonb_typeof(h.value) <> 'string')),
        'headers are not a JSON object of texts', 'Write them like {"name": "value"}.');
    perform /*:*/require(
        priority between -32768 and 32767, 'priority is ' || coalesce(priority::text, 'null'),
        'Give it -32768 to 32767.');
    perform /*:*/require_delay('delay', coalesce(delay, interval '0'));
    perform /*:*/require_delay('expires_in', coalesce(expires_in, interval '0'));
    perform /*:*/require(
        coalesce(due_at, v_now) < timestamptz '9999-01-01', 'due_at is out of range', 'Give a time before 9999.');
    v_policy := array_position(array['block', 'park', 'skip'], order_policy) - 1;
    perform /*:*/require(
        v_policy is not null, 'order_policy is ' || coalesce(order_policy, 'null'), 'Choose block, park or skip.');

    -- If the caller has an id, repeating the call is harmless.
    id := coalesce(message_id, /*:*/new_id());

    insert into /*:*/outbox as o (
        message_id, topic, key, order_policy, dedup, payload, content_type, headers, correlation_id, aggregate_type,
        aggregate_id, tenant_id, priority, created_at, due_at, expires_at, state, epoch, attempts, lease_losses
    ) values (
        id, enqueue_bytes.topic, nullif(enqueue_bytes.key, ''), v_policy, v_hash, enqueue_bytes.payload,
        enqueue_bytes.content_type, nullif(enqueue_bytes.headers, '{}')::text, nullif(enqueue_bytes.correlation_id, ''),
        nullif(enqueue_bytes.aggregate_type, ''), nullif(enqueue_bytes.aggregate_id, ''),
        nullif(enqueue_bytes.tenant_id, ''), enqueue_bytes.priority, v_now,
        greatest(v_now, coalesce(enqueue_bytes.due_at, v_now + enqueue_bytes.delay)),
        v_now + enqueue_bytes.expires_in, 0, 0, 0, 0
    )
    on conflict do nothing;
    duplicate := not found;
    if duplicate then
        select o.message_id into id from /*:*/outbox o where o.message_id = enqueue_bytes.id or o.dedup = v_hash
        order by o.message_id = enqueue_bytes.id desc limit 1;
    end if;
end
$body$;

-- The same for a text, by default JSON.
create or replace function /*:*/enqueue(
    topic text, payload text, key text default null, delay interval default null, due_at timestamptz default null,
    expires_in interval default null, priority integer default 0, dedup_key text default null,
    correlation_id text default null, headers jsonb default null, aggregate_type text default null,
    aggregate_id text default null, tenant_id text default null, order_policy text default 'block',
    content_type text default 'application/json', message_id uuid default null,
    max_payload_bytes integer default 1048576, out id uuid, out duplicate boolean
)
language sql volatile
as $body$
select * from /*:*/enqueue_bytes(
    topic, convert_to(payload, 'UTF8'), key, delay, due_at, expires_in, priority, dedup_key, correlation_id, headers,
    aggregate_type, aggregate_id, tenant_id, order_policy, content_type, message_id, max_payload_bytes)
$body$;
