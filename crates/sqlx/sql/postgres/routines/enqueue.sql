-- Enqueueing from other languages, in the caller's transaction. Limits are in bytes, as in Rust; a message whose id or
-- dedup key is stored already is not stored again, and the answer names the stored one. Null means the default.
create or replace function /*:*/enqueue_bytes(
    topic text, payload bytea, key text default null, delay interval default null, due_at timestamptz default null,
    expires_in interval default null, priority integer default 0, dedup_key text default null,
    correlation_id text default null, headers jsonb default null, aggregate_type text default null,
    aggregate_id text default null, tenant_id text default null, order_policy text default 'block',
    content_type text default 'application/octet-stream', message_id uuid default null,
    max_payload_bytes integer default 1048576, out id uuid, out duplicate boolean
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set jit = off
as $body$
declare
    v_fault text;
    v_remedy text;
    v_policy smallint := array_position(array['block', 'park', 'skip'], coalesce(order_policy, 'block')) - 1;
    v_hash bytea := sha256(convert_to(nullif(dedup_key, ''), 'UTF8'));
    v_now timestamptz := clock_timestamp();
    v_wanted uuid;
begin
    priority := coalesce(priority, 0);
    content_type := coalesce(content_type, 'application/octet-stream');
    max_payload_bytes := coalesce(max_payload_bytes, 1048576);
    headers := nullif(headers, 'null');

    select format('%s has %s bytes, the limit is %s', f.name, octet_length(f.value), f.most), 'Shorten it.'
    into v_fault, v_remedy
    from (values ('topic', topic, 255), ('key', key, 255), ('correlation_id', correlation_id, 255),
                 ('aggregate_type', aggregate_type, 255), ('aggregate_id', aggregate_id, 255), ('tenant_id', tenant_id, 255),
                 ('content_type', content_type, 127), ('headers', headers::text, 65536)) f (name, value, most)
    where octet_length(f.value) > f.most
    limit 1;
    if v_fault is not null then
        null;
    elsif coalesce(topic, '') = '' then
        v_fault := 'topic is empty';
        v_remedy := 'Give it 1 to 255 bytes.';
    elsif payload is null then
        v_fault := 'payload is null';
        v_remedy := 'Give it an empty value if there is none.';
    elsif octet_length(payload) > max_payload_bytes then
        v_fault := format('payload has %s bytes, the limit is %s', octet_length(payload), max_payload_bytes);
        v_remedy := 'Store the content elsewhere and publish a reference.';
    elsif headers is not null and (jsonb_typeof(headers) <> 'object' or exists (
            select from jsonb_each(headers) h where jsonb_typeof(h.value) <> 'string')) then
        v_fault := 'headers are not a JSON object of texts';
        v_remedy := 'Write them like {"name": "value"}.';
    elsif priority not between -32768 and 32767 then
        v_fault := 'priority is ' || priority;
        v_remedy := 'Give it -32768 to 32767.';
    elsif v_policy is null then
        v_fault := 'order_policy is ' || order_policy;
        v_remedy := 'Choose block, park or skip.';
    elsif due_at >= timestamptz '9999-01-01' then
        v_fault := 'due_at is out of range';
        v_remedy := 'Give a time before 9999.';
    elsif delay not between interval '0' and interval '100 years' then
        v_fault := 'delay is ' || delay;
        v_remedy := 'Give it 0 to 100 years.';
    elsif expires_in not between interval '0' and interval '100 years' then
        v_fault := 'expires_in is ' || expires_in;
        v_remedy := 'Give it 0 to 100 years.';
    end if;
    if v_fault is not null then
        perform /*:*/require(false, v_fault, v_remedy);
    end if;

    -- If the caller has an id, repeating the call is harmless.
    v_wanted := coalesce(message_id, /*:*/new_id());

    insert into /*:*/outbox as o (
        message_id, topic, key, order_policy, dedup, payload, content_type, headers, correlation_id, aggregate_type,
        aggregate_id, tenant_id, priority, created_at, due_at, expires_at, born, state, epoch, attempts,
        lease_losses
    ) values (
        v_wanted, enqueue_bytes.topic, nullif(enqueue_bytes.key, ''), v_policy, v_hash, enqueue_bytes.payload,
        enqueue_bytes.content_type, nullif(enqueue_bytes.headers, '{}')::text, nullif(enqueue_bytes.correlation_id, ''),
        nullif(enqueue_bytes.aggregate_type, ''), nullif(enqueue_bytes.aggregate_id, ''),
        nullif(enqueue_bytes.tenant_id, ''), enqueue_bytes.priority, v_now,
        greatest(v_now, coalesce(enqueue_bytes.due_at, v_now + enqueue_bytes.delay)),
        v_now + enqueue_bytes.expires_in,
        case when coalesce(enqueue_bytes.due_at, v_now + enqueue_bytes.delay) > v_now then null else pg_current_xact_id() end,
        0, 0, 0, 0
    )
    on conflict do nothing;
    duplicate := not found;
    id := v_wanted;
    if duplicate then
        select o.message_id into id from /*:*/outbox o where o.message_id = v_wanted or o.dedup = v_hash
        order by o.message_id = v_wanted desc limit 1;
        if id is null then
            -- Its twin was removed at the same moment, or the next seq is taken.
            raise exception 'the message was not stored, and no stored message has its id or dedup key'
                using errcode = 'serialization_failure',
                      hint = 'Begin again, in a new transaction. If that keeps failing, numbers of outbox.seq are taken already, '
                             'as after an incomplete restore: run "posthaste doctor".';
        end if;
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
set search_path = pg_catalog, pg_temp
set jit = off
as $body$
select * from /*:*/enqueue_bytes(
    topic, convert_to(payload, 'UTF8'), key, delay, due_at, expires_in, priority, dedup_key, correlation_id, headers,
    aggregate_type, aggregate_id, tenant_id, order_policy, coalesce(content_type, 'application/json'), message_id,
    max_payload_bytes)
$body$;
