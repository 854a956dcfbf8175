-- Publishing. These routines run with the rights of the tables' owner: a role that may call them needs no right on a table, and
-- cannot say what state a message is in, who leases it or which transaction wrote it. See rights.sql for who may.

-- Stores one message, unless its id or its dedup key is stored already; says whether it did.
create or replace function /*:*/publish_one(
    message_id uuid, topic text, order_policy smallint, dedup bytea, payload bytea, content_type text, headers text,
    correlation_id text, aggregate_type text, aggregate_id text, tenant_id text, priority smallint, occurred_at timestamptz,
    key text, delay interval, due_at timestamptz, expires_in interval, expires_at timestamptz
)
returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $body$
declare
    v_now timestamptz := clock_timestamp();
    v_due timestamptz := coalesce(due_at, v_now + delay, v_now);
    v_waits boolean := v_due > v_now;
begin
    if v_due = 'infinity' then
        perform /*:*/require(false, 'due_at is infinite', 'Give a time before 9999.');
    end if;
    insert into /*:*/outbox (
        message_id, topic, order_policy, dedup, payload, content_type, headers, correlation_id, aggregate_type, aggregate_id,
        tenant_id, priority, occurred_at, key, created_at, due_at, expires_at, born, state, epoch, attempts, lease_losses
    )
    values (
        message_id, topic, order_policy, dedup, payload, content_type, headers, correlation_id, aggregate_type, aggregate_id,
        tenant_id, priority, occurred_at, key, v_now, greatest(v_due, v_now), coalesce(expires_at, v_now + expires_in),
        case when not v_waits then pg_current_xact_id() end, 0, 0, 0, 0
    )
    on conflict do nothing;
    return found;
end
$body$;

-- Stores a batch, and answers the ids that it stored. Times are in microseconds: from now, or since 1970.
create or replace function /*:*/publish(
    ids uuid[], topics text[], keys text[], order_policies smallint[], dedups bytea[], payloads bytea[], content_types text[],
    headers text[], correlation_ids text[], aggregate_types text[], aggregate_ids text[], tenant_ids text[],
    priorities smallint[], occurred bigint[], due_in bigint[], due bigint[], expires_in bigint[], expires bigint[]
)
returns setof uuid
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set jit = off
as $body$
declare
    v_now timestamptz := clock_timestamp();
begin
    return query
    insert into /*:*/outbox as o (
        message_id, topic, key, order_policy, dedup, payload, content_type, headers, correlation_id, aggregate_type,
        aggregate_id, tenant_id, priority, occurred_at, created_at, due_at, expires_at, born, state, epoch, attempts,
        lease_losses
    )
    select
        m.message_id, m.topic, m.key, m.order_policy, m.dedup, m.payload, m.content_type, m.headers, m.correlation_id,
        m.aggregate_type, m.aggregate_id, m.tenant_id, m.priority,
        timestamptz 'epoch' + m.occurred * interval '1 microsecond', v_now,
        case when m.due > v_now then m.due else v_now end, m.expires,
        case when m.due > v_now then null else pg_current_xact_id() end, 0, 0, 0, 0
    from (
        select u.*,
               coalesce(v_now + u.due_in * interval '1 microsecond',
                        timestamptz 'epoch' + u.due_us * interval '1 microsecond') as due,
               coalesce(v_now + u.expires_in * interval '1 microsecond',
                        timestamptz 'epoch' + u.expires_us * interval '1 microsecond') as expires
        from unnest(
            ids, topics, keys, order_policies, dedups, payloads, content_types, headers, correlation_ids, aggregate_types,
            aggregate_ids, tenant_ids, priorities, occurred, due_in, due, expires_in, expires
        ) with ordinality as u (
            message_id, topic, key, order_policy, dedup, payload, content_type, headers, correlation_id, aggregate_type,
            aggregate_id, tenant_id, priority, occurred, due_in, due_us, expires_in, expires_us, n
        )
    ) m
    order by m.n
    on conflict do nothing
    returning o.message_id;
end
$body$;

-- The messages that stand in the way of these ids and dedup hashes. Of others' hashes it shows those the caller knows.
create or replace function /*:*/twins(ids uuid[], hashes bytea[])
returns table (message_id uuid, dedup bytea)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
as $body$
begin
    return query
    select o.message_id, case when o.dedup = any(hashes) then o.dedup end from /*:*/outbox o where o.message_id = any(ids)
    union all
    select o.message_id, o.dedup from /*:*/outbox o where o.dedup = any(hashes);
end
$body$;
