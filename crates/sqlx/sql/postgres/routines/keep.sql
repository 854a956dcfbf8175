-- Keeping leases, and taking back what ran out.

-- What is kept is put together into one new lease per worker, so that keeping a few of a thousand does not keep them all.
create or replace function /*:*/renew_all(items bigint[], epochs integer[], lease interval default interval '30 seconds')
returns table (settled smallint)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
as $body$
#variable_conflict use_column
declare
    v_leases bigint[];
    v_leased int8multirange;
    v_step integer;
    v_settled smallint[];
    v_kept int8multirange;
begin
    lease := coalesce(lease, interval '30 seconds');
    -- Ids of leases then grow in the order in which they can be seen.
    perform /*:*/gate();
    select array_agg(distinct l.id), coalesce(range_agg(i), '{}'), min(l.step)
    into v_leases, v_leased, v_step
    from (select id, items, step from /*:*/outbox_lease
          where id >= (select coalesce(max(m.lease), 0) from /*:*/outbox_mark m)
            and items && (select range_agg(int8range(a, a, '[]')) from unnest($1) a where a < 9223372036854775807)
          order by id
          for update) l
    cross join lateral unnest(l.items) i;

    with asked as materialized (
        select * from unnest($1, $2) with ordinality as a (seq, epoch, n)
    ),
    locked as materialized (
        select o.seq, case when o.state = 1 then o.epoch end as born_at from /*:*/outbox o
        where o.seq = any($1) and o.state = 1
        order by o.seq
        for update
    ),
    judged as materialized (
        select a.n, a.seq, a.epoch, o.seq is not null as is_there, l.born_at = a.epoch as is_born,
               o.state = 0 and v_leased @> a.seq and o.epoch + v_step = a.epoch as is_kept
        from asked a
        left join /*:*/outbox o on o.seq = a.seq
        left join locked l on l.seq = a.seq
    ),
    renewed as (
        update /*:*/outbox o
        set leased_until = clock_timestamp() + $3
        from judged j
        where o.seq = j.seq and j.is_born
    )
    select array_agg((case when j.is_born or j.is_kept then 0 when j.is_there then 1 else 2 end)::smallint order by j.n),
           range_agg(int8range(j.seq, j.seq, '[]')) filter (where j.is_kept)
    into v_settled, v_kept
    from judged j;

    if v_kept is not null then
        insert into /*:*/outbox_lease (leased_until, worker, items, step)
        select clock_timestamp() + $3, l.worker, range_agg(i), v_step
        from /*:*/outbox_lease l cross join lateral unnest(l.items * v_kept) i
        where l.id = any(v_leases)
        group by l.worker;
        perform /*:*/let_go(v_leases, v_kept);
    end if;
    return query select s from unnest(v_settled) with ordinality as a (s, n) order by n;
end
$body$;

create or replace function /*:*/renew(item bigint, epoch integer, lease interval default interval '30 seconds')
returns smallint
language sql volatile
set search_path = pg_catalog, pg_temp
set jit = off
as $body$
select /*:*/require_lease(coalesce(lease, interval '30 seconds'));
select settled from /*:*/renew_all(array[item], array[epoch], lease)
$body$;

-- The locks wait for nobody, and the conditions are looked at again once they are held. Joins that end by it follow the
-- numbers; reap leaves them out.
create or replace function /*:*/reap_all(max_messages bigint, max_losses integer)
returns table (
    ready bigint, join_id uuid, status smallint, expected_steps integer, completed_steps integer, failed_steps integer,
    dead bigint
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
as $body$
#variable_conflict use_column
declare
    v_leases bigint[];
    v_step integer;
    v_lost bigint[];
    v_reaped bigint[];
    v_ready bigint;
    v_dead bigint;
    v_messages uuid[];
    v_now timestamptz := clock_timestamp();
begin
    perform /*:*/require_read_committed();
    select array_agg(distinct l.id), min(l.step), (array_agg(s order by l.leased_until, s))[:max_messages]
    into v_leases, v_step, v_lost
    from (select id, leased_until, items, step from /*:*/outbox_lease
          where id >= (select coalesce(max(m.lease), 0) from /*:*/outbox_mark m) and leased_until < v_now
          order by leased_until, id
          limit max_messages
          for update skip locked) l
    cross join lateral unnest(l.items) i
    cross join lateral generate_series(lower(i), upper(i) - 1) s;

    with lost as materialized (
        select seq from /*:*/outbox
        where state = 1 and leased_until < v_now
        order by leased_until, seq
        limit greatest(0, max_messages - coalesce(cardinality(v_lost), 0))
        for update skip locked
    ),
    lost_in_leases as materialized (
        select seq from /*:*/outbox where seq = any(v_lost) and state = 0 order by seq for update skip locked
    ),
    reaped as (
        update /*:*/outbox o
        set lease_losses = o.lease_losses + 1,
            epoch = o.epoch + case o.state when 0 then v_step else 0 end,
            state = case when o.lease_losses + 1 >= max_losses then 3 else 0 end,
            due_at = case when o.lease_losses + 1 >= max_losses then o.due_at else v_now end,
            done_at = case when o.lease_losses + 1 >= max_losses then v_now end,
            error_class = case when o.lease_losses + 1 >= max_losses then 7 else o.error_class end,
            last_error = case when o.lease_losses + 1 >= max_losses then 'crash suspect' else o.last_error end,
            leased_until = null,
            worker = null
        where o.seq = any(array(select seq from lost union all select seq from lost_in_leases))
        returning o.seq, o.state, o.message_id
    )
    select count(*) filter (where r.state = 0), count(*) filter (where r.state = 3),
           array_agg(r.message_id) filter (where r.state = 3), array_agg(r.seq)
    into v_ready, v_dead, v_messages, v_reaped
    from reaped r;

    if v_leases is not null then
        -- Those that somebody else has locked stay for the next time; those that somebody deleted do not.
        perform /*:*/let_go(v_leases, (
            select coalesce(range_agg(int8range(s, s, '[]')), '{}') from unnest(v_lost) s
            where s = any(v_reaped) or not exists (select from /*:*/outbox o where o.seq = s and o.state = 0)));
    end if;
    return query select v_ready, null::uuid, null::smallint, null::integer, null::integer, null::integer, v_dead;
    if v_dead > 0 then
        return query select null::bigint, c.*, null::bigint
                     from /*:*/count_steps(v_messages, array_fill(2::smallint, array[v_dead::integer]), v_now) c;
    end if;
end
$body$;

create or replace function /*:*/reap(max_messages bigint default 1000, max_losses integer default 5)
returns table (ready bigint, dead bigint)
language sql volatile
set search_path = pg_catalog, pg_temp
set jit = off
as $body$
select r.ready, r.dead from /*:*/reap_all(coalesce($1, 1000), coalesce($2, 5)) r where r.ready is not null
$body$;

-- Joins whose deadline has passed, and messages that nobody claimed before their expiry: the number of those, and the joins.
create or replace function /*:*/expire_all(max_messages bigint)
returns table (
    expired bigint, join_id uuid, status smallint, expected_steps integer, completed_steps integer, failed_steps integer
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
as $body$
#variable_conflict use_column
declare
    v_expired bigint;
    v_messages uuid[];
    v_leased int8multirange;
    v_now timestamptz;
begin
    perform /*:*/gate();
    v_now := clock_timestamp();
    return query select null::bigint, j.* from /*:*/expire_joins(max_messages, null) j;

    v_leased := /*:*/leased();
    with over as materialized (
        select seq from /*:*/outbox
        where state = 0 and expires_at <= v_now and not v_leased @> seq
        order by expires_at, seq
        limit max_messages
        for update skip locked
    ),
    expired as (
        update /*:*/outbox o
        set state = 3, done_at = v_now, error_class = 6, last_error = 'expired',
            due_at = case when o.due_at = 'infinity' then v_now else o.due_at end
        where o.seq = any(array(select seq from over))
        returning o.message_id
    )
    select count(*), array_agg(e.message_id) into v_expired, v_messages from expired e;

    return query select v_expired, null::uuid, null::smallint, null::integer, null::integer, null::integer;
    if v_expired > 0 then
        return query select null::bigint, c.*
                     from /*:*/count_steps(v_messages, array_fill(2::smallint, array[v_expired::integer]), v_now) c;
    end if;
end
$body$;

create or replace function /*:*/expire(max_messages bigint default 1000)
returns bigint
language sql volatile
set search_path = pg_catalog, pg_temp
set jit = off
as $body$
select e.expired from /*:*/expire_all(coalesce($1, 1000)) e where e.expired is not null
$body$;

-- Sets aside the due messages of keys that a dead message with the policy park holds back; answers how many. The dead ones
-- are locked, so that a requeue, which un-parks in a second statement, comes either wholly before or wholly after.
create or replace function /*:*/park(max_messages bigint default 1000)
returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
as $body$
declare
    v_leased int8multirange;
    v_parked bigint;
    v_now timestamptz;
begin
    max_messages := coalesce(max_messages, 1000);
    perform /*:*/gate();
    v_now := clock_timestamp();
    v_leased := /*:*/leased();
    with holders as materialized (
        select seq, key from /*:*/outbox
        where state = 3 and key is not null and order_policy = 1 and error_class not in (6, 8)
        order by seq
        for update skip locked
    ),
    behind as materialized (
        select f.seq from holders h
        join /*:*/outbox f on f.key = h.key and f.seq > h.seq
        where f.state = 0 and f.due_at <= v_now and not v_leased @> f.seq
        order by f.seq
        limit max_messages
        for update of f skip locked
    ),
    parked as (
        update /*:*/outbox o set due_at = 'infinity' where o.seq = any(array(select seq from behind))
        returning o.seq
    )
    select count(*) into v_parked from parked;
    return v_parked;
end
$body$;
