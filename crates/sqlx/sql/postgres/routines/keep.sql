-- Keeping leases, and taking back what ran out.
create or replace function /*:*/renew_all(items bigint[], epochs integer[], lease interval default interval '30 seconds')
returns table (settled smallint)
language sql volatile
set jit = off
set enable_seqscan = off
as $body$
/*include renew*/
$body$;

create or replace function /*:*/renew(item bigint, epoch integer, lease interval default interval '30 seconds')
returns smallint
language sql volatile
as $body$
select /*:*/require_lease(lease);
select settled from /*:*/renew_all(array[item], array[epoch], lease)
$body$;

-- The lock waits for nobody, and looks at the condition again once it is held. Joins that end by it follow the numbers; reap
-- leaves them out.
create or replace function /*:*/reap_all(max_messages bigint, max_losses integer)
returns table (
    ready bigint, join_id uuid, status smallint, expected_steps integer, completed_steps integer, failed_steps integer,
    dead bigint
)
language plpgsql volatile
set jit = off
set enable_seqscan = off
as $body$
#variable_conflict use_column
declare
    v_ready bigint;
    v_dead bigint;
    v_messages uuid[];
begin
    with lost as materialized (
        select seq from /*:*/outbox
        where state = 1 and leased_until < statement_timestamp()
        order by leased_until, seq
        limit max_messages
        for update skip locked
    ),
    reaped as (
        update /*:*/outbox o
        set lease_losses = o.lease_losses + 1,
            state = case when o.lease_losses + 1 >= max_losses then 3 else 0 end,
            due_at = case when o.lease_losses + 1 >= max_losses then o.due_at else statement_timestamp() end,
            done_at = case when o.lease_losses + 1 >= max_losses then statement_timestamp() end,
            error_class = case when o.lease_losses + 1 >= max_losses then 7 else o.error_class end,
            last_error = case when o.lease_losses + 1 >= max_losses then 'crash suspect' else o.last_error end,
            leased_until = null,
            worker = null
        where o.seq = any(array(select seq from lost))
        returning o.state, o.message_id
    )
    select count(*) filter (where r.state = 0), count(*) filter (where r.state = 3),
           array_agg(r.message_id) filter (where r.state = 3)
    into v_ready, v_dead, v_messages
    from reaped r;

    return query select v_ready, null::uuid, null::smallint, null::integer, null::integer, null::integer, v_dead;
    if v_dead > 0 then
        return query select null::bigint, c.*, null::bigint
                     from /*:*/count_steps(v_messages, array_fill(2::smallint, array[v_dead::integer])) c;
    end if;
end
$body$;

create or replace function /*:*/reap(max_messages bigint default 1000, max_losses integer default 5)
returns table (ready bigint, dead bigint)
language sql volatile
as $body$
select r.ready, r.dead from /*:*/reap_all($1, $2) r where r.ready is not null
$body$;

-- Joins whose deadline has passed, and messages that nobody claimed before their expiry: the number of those, and the joins.
create or replace function /*:*/expire_all(max_messages bigint)
returns table (
    expired bigint, join_id uuid, status smallint, expected_steps integer, completed_steps integer, failed_steps integer
)
language plpgsql volatile
set jit = off
set enable_seqscan = off
as $body$
#variable_conflict use_column
declare
    v_expired bigint;
    v_messages uuid[];
begin
    return query select null::bigint, j.* from /*:*/expire_joins(max_messages, null) j;

    with over as materialized (
        select seq from /*:*/outbox
        where state = 0 and expires_at <= statement_timestamp()
        order by expires_at, seq
        limit max_messages
        for update skip locked
    ),
    expired as (
        update /*:*/outbox o
        set state = 3, done_at = statement_timestamp(), error_class = 6, last_error = 'expired',
            due_at = case when o.due_at = 'infinity' then statement_timestamp() else o.due_at end
        where o.seq = any(array(select seq from over))
        returning o.message_id
    )
    select count(*), array_agg(e.message_id) into v_expired, v_messages from expired e;

    return query select v_expired, null::uuid, null::smallint, null::integer, null::integer, null::integer;
    if v_expired > 0 then
        return query select null::bigint, c.*
                     from /*:*/count_steps(v_messages, array_fill(2::smallint, array[v_expired::integer])) c;
    end if;
end
$body$;

create or replace function /*:*/expire(max_messages bigint default 1000)
returns bigint
language sql volatile
as $body$
select e.expired from /*:*/expire_all($1) e where e.expired is not null
$body$;
