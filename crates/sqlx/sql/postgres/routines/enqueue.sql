-- What is wrong with a message, and what to do about it; null if it can be stored. texts: its key, correlation id, aggregate
-- type and id, tenant and content type.
create or replace function /*:*/fault_of(
    topic text, payload bytea, headers jsonb, priority integer, policy smallint, order_policy text, due_at timestamptz,
    delay interval, expires_in interval, max_payload_bytes integer, texts text[], out what text, out remedy text
)
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $body$
begin
    select format('%s has %s bytes, the limit is %s', f.name, octet_length(f.value), f.most), 'Shorten it.'
    into what, remedy
    from (values ('topic', topic, 255), ('key', texts[1], 255), ('correlation_id', texts[2], 255),
                 ('aggregate_type', texts[3], 255), ('aggregate_id', texts[4], 255), ('tenant_id', texts[5], 255),
                 ('content_type', texts[6], 127), ('headers', headers::text, 65536)) f (name, value, most)
    where octet_length(f.value) > f.most
    limit 1;
    if what is not null then
        return;
    elsif coalesce(topic, '') = '' then
        what := 'topic is empty';
        remedy := 'Give it 1 to 255 bytes.';
    elsif payload is null then
        what := 'payload is null';
        remedy := 'Give it an empty value if there is none.';
    elsif octet_length(payload) > max_payload_bytes then
        what := format('payload has %s bytes, the limit is %s', octet_length(payload), max_payload_bytes);
        remedy := 'Store the content elsewhere and publish a reference.';
    elsif headers is not null and (jsonb_typeof(headers) <> 'object' or exists (
            select from jsonb_each(headers) h where jsonb_typeof(h.value) <> 'string')) then
        what := 'headers are not a JSON object of texts';
        remedy := 'Write them like {"name": "value"}.';
    elsif priority not between -32768 and 32767 then
        what := 'priority is ' || priority;
        remedy := 'Give it -32768 to 32767.';
    elsif policy is null then
        what := 'order_policy is ' || order_policy;
        remedy := 'Choose block, park or skip.';
    elsif due_at >= timestamptz '9999-01-01' then
        what := 'due_at is out of range';
        remedy := 'Give a time before 9999.';
    elsif delay not between interval '0' and interval '100 years' then
        what := 'delay is ' || delay;
        remedy := 'Give it 0 to 100 years.';
    elsif expires_in not between interval '0' and interval '100 years' then
        what := 'expires_in is ' || expires_in;
        remedy := 'Give it 0 to 100 years.';
    end if;
end
$body$;

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
    v_policy smallint := array_position(array['block', 'park', 'skip'], coalesce(order_policy, 'block')) - 1;
    v_hash bytea := sha256(convert_to(nullif(dedup_key, ''), 'UTF8'));
    v_fault record;
begin
    priority := coalesce(priority, 0);
    content_type := coalesce(content_type, 'application/octet-stream');
    headers := nullif(headers, 'null');
    select * into v_fault from /*:*/fault_of(
        topic, payload, headers, priority, v_policy, order_policy, due_at, delay, expires_in,
        coalesce(max_payload_bytes, 1048576),
        array[key, correlation_id, aggregate_type, aggregate_id, tenant_id, content_type]);
    if v_fault.what is not null then
        perform /*:*/require(false, v_fault.what, v_fault.remedy);
    end if;

    -- If the caller has an id, repeating the call is harmless.
    id := coalesce(message_id, /*:*/new_id());
    duplicate := not /*:*/publish_one(
        id, topic, v_policy, v_hash, payload, content_type, nullif(headers, '{}')::text, nullif(correlation_id, ''),
        nullif(aggregate_type, ''), nullif(aggregate_id, ''), nullif(tenant_id, ''), priority::smallint, null,
        nullif(key, ''), delay, due_at, expires_in, null);
    if duplicate then
        select t.message_id into id from /*:*/twins(array[id], array[v_hash]) t order by t.message_id = id desc limit 1;
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
