-- Keeping leases, and taking back what ran out.

-- Whether anything in these items is still held under this token.
create or replace function /*:*/is_held(items int8multirange, token integer)
returns boolean
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $body$
begin
    return exists (
        select from unnest(items) i join /*:*/outbox o on o.seq >= lower(i) and o.seq < upper(i)
        where (o.state = 0 and o.epoch <> token) or (o.state = 1 and o.epoch = token));
end
$body$;

-- Keeps these items of these leases, which are locked. A lease of which a part is kept is cut in two, so that keeping a few of a
-- thousand does not keep them all.
create or replace function /*:*/keep_leases(leases bigint[], kept int8multirange[], until timestamptz)
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $body$
#variable_conflict use_column
begin
    with cut as materialized (
        select l.id, l.token, l.worker, l.items * k.items as kept, l.items - k.items as rest,
               /*:*/is_held(l.items - k.items, l.token) as is_part
        from unnest($1, $2) k (id, items) join /*:*/outbox_lease l on l.id = k.id
    ),
    whole as (
        update /*:*/outbox_lease l set leased_until = $3, born = pg_current_xact_id(), items = c.kept
        from cut c where l.id = c.id and not c.is_part
    ),
    part as (
        update /*:*/outbox_lease l set items = c.rest from cut c where l.id = c.id and c.is_part
    )
    insert into /*:*/outbox_lease (token, leased_until, worker, items)
    select c.token, $3, c.worker, c.kept from cut c where c.is_part;
end
$body$;

-- Messages' rows are not changed, and a session that has locked one is not waited for. A message that was born leased gets a lease,
-- with the token of its row. Reap would take it by its row alone, so the row is locked against that; one whose lease has run out and
-- whose row is locked by another session may be on its way to the next worker, and is lost.
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
    v_until timestamptz;
    v_now timestamptz;
    v_asked int8multirange;
    v_locked bigint[] := '{}';
    v_safe bigint[];
    v_settled smallint[];
    v_leases bigint[];
    v_kept int8multirange[];
    v_born bigint[];
begin
    perform /*:*/require_read_committed();
    -- Another renewal that is waited for may have cut a lease in two, so this looks until it finds nothing more.
    select coalesce(range_agg(int8range(a, a, '[]')), '{}') into v_asked from unnest($1) a where a < 9223372036854775807;
    while exists (select from /*:*/outbox_lease l where l.token = any($2) and l.items && v_asked and l.id <> all(v_locked)) loop
        v_locked := array(
            select l.id from /*:*/outbox_lease l
            where l.token = any($2) and l.items && v_asked
            order by l.id
            for update);
    end loop;
    v_safe := array(
        select o.seq from /*:*/outbox o where o.seq = any($1) and o.state = 1
        order by o.seq
        for key share skip locked);
    -- After the locks, which may have been waited for.
    v_now := clock_timestamp();
    v_until := v_now + coalesce($3, interval '30 seconds');

    with judged as materialized (
        select a.n, a.seq, o.seq is not null as is_there, l.id as lease,
               coalesce((o.state = 0 and o.epoch <> a.token and l.id is not null)
                        or (o.state = 1 and o.epoch = a.token
                            and (o.seq = any(v_safe) or greatest(o.leased_until, l.leased_until) >= v_now)), false) as is_held
        from unnest($1, $2) with ordinality a (seq, token, n)
        left join /*:*/outbox o on o.seq = a.seq
        left join lateral (
            select l.id, l.leased_until from /*:*/outbox_lease l
            where l.id = any(v_locked) and l.token = a.token and l.items @> a.seq
            limit 1
        ) l on true
    ),
    kept as (
        select j.lease, range_agg(int8range(j.seq, j.seq, '[]')) as items
        from judged j where j.is_held and j.lease is not null
        group by j.lease
    )
    select array_agg((case when j.is_held then 0 when j.is_there then 1 else 2 end)::smallint order by j.n),
           array_agg(j.seq) filter (where j.is_held and j.lease is null),
           (select array_agg(k.lease order by k.lease) from kept k),
           (select array_agg(k.items order by k.lease) from kept k)
    into v_settled, v_born, v_leases, v_kept
    from judged j;

    if v_leases is not null then
        perform /*:*/keep_leases(v_leases, v_kept, v_until);
    end if;
    if v_born is not null then
        insert into /*:*/outbox_lease (token, leased_until, worker, items)
        select o.epoch, v_until, o.worker, range_agg(int8range(o.seq, o.seq, '[]'))
        from /*:*/outbox o where o.seq = any(v_born) and o.state = 1
        group by o.epoch, o.worker;
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

-- Takes messages back whose lease has run out, or gives them up if they have lost too many: what became of each. The locks wait for
-- nothing, and what they skip stays for the next time. A message that was born leased may have been renewed since.
create or replace function /*:*/take_back(leases bigint[], max_messages bigint, max_losses integer, now timestamptz)
returns table (message_id uuid, seq bigint, key text, state smallint, order_policy smallint)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $body$
#variable_conflict use_column
declare
    v_seqs bigint[];
    v_tokens integer[];
begin
    with claimed as materialized (
        select o.seq, l.token
        from /*:*/outbox_lease l cross join lateral unnest(l.items) i
        join /*:*/outbox o on o.seq >= lower(i) and o.seq < upper(i)
        where l.id = any($1) and o.state = 0 and o.epoch <> l.token
        limit $2
        for update of o skip locked
    ),
    born as materialized (
        select o.seq, o.epoch as token from /*:*/outbox o
        where o.state = 1 and o.leased_until < $4 and not exists (
            select from /*:*/outbox_lease l where l.token = o.epoch and l.items @> o.seq and l.leased_until >= $4)
        order by o.leased_until, o.seq
        limit greatest(0, $2 - (select count(*) from claimed))
        for update of o skip locked
    )
    select array_agg(t.seq), array_agg(t.token) into v_seqs, v_tokens
    from (select * from claimed union all select * from born) t;

    return query
    update /*:*/outbox o
    set lease_losses = least(o.lease_losses, 2147483646) + 1,
        epoch = t.token,
        born = null,
        state = case when o.lease_losses >= $3 - 1 then 3 else 0 end,
        due_at = case when o.lease_losses >= $3 - 1 then o.due_at else $4 end,
        done_at = case when o.lease_losses >= $3 - 1 then $4 end,
        error_class = case when o.lease_losses >= $3 - 1 then 7 else o.error_class end,
        last_error = case when o.lease_losses >= $3 - 1 then 'crash suspect' else o.last_error end,
        leased_until = null,
        worker = null
    from unnest(v_seqs, v_tokens) t (seq, token)
    where o.seq = t.seq
    returning o.message_id, o.seq, o.key, o.state, o.order_policy;
end
$body$;

-- Joins that end by it follow the numbers; reap leaves them out.
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
    v_now timestamptz := clock_timestamp();
    v_cursor /*:*/outbox_cursor := /*:*/newest_cursor();
    v_leases bigint[];
    v_ready bigint;
    v_dead bigint;
    v_messages uuid[];
    v_keys text[];
    v_overs bigint[];
begin
    perform /*:*/require_read_committed();
    v_leases := array(
        select l.id from /*:*/outbox_lease l
        where l.leased_until < v_now
          and l.id = any(array(select n.id from /*:*/leases_since(v_cursor.lease_from, v_cursor.lease_late) n))
        order by l.leased_until, l.id
        limit max_messages
        for update skip locked);

    select count(*) filter (where t.state = 0), count(*) filter (where t.state = 3),
           array_agg(t.message_id) filter (where t.state = 3),
           array_agg(t.key) filter (where t.state = 3 and t.key is not null and t.order_policy = 2),
           array_agg(t.seq) filter (where t.state = 3 and t.key is not null and t.order_policy = 2)
    into v_ready, v_dead, v_messages, v_keys, v_overs
    from /*:*/take_back(v_leases, max_messages, max_losses, v_now) t;

    if v_leases <> '{}' then
        perform /*:*/trim_leases(v_leases);
    end if;
    if v_keys is not null then
        perform /*:*/free_next(v_keys, v_overs);
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

-- Gives up messages that were not claimed before their expiry: see expire_all. They are locked first; what a claim leased before
-- its lock was had is left out then.
create or replace function /*:*/give_up_expired(max_messages bigint, now timestamptz, out expired bigint, out messages uuid[])
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $body$
declare
    v_leased int8multirange := /*:*/leased();
    v_over bigint[];
    v_keys text[];
    v_overs bigint[];
begin
    v_over := array(
        select o.seq from /*:*/outbox o
        where o.state = 0 and o.expires_at <= $2 and not v_leased @> o.seq
        order by o.expires_at, o.seq
        limit $1
        for update skip locked);
    v_leased := /*:*/leased();
    with given_up as (
        update /*:*/outbox o
        set state = 3, done_at = $2, error_class = 6, last_error = 'expired', born = null,
            due_at = case when o.due_at = 'infinity' then $2 else o.due_at end
        where o.seq = any(v_over) and not v_leased @> o.seq
        returning o.message_id, o.seq, o.key
    )
    select count(*), array_agg(g.message_id), array_agg(g.key) filter (where g.key is not null),
           array_agg(g.seq) filter (where g.key is not null)
    into expired, messages, v_keys, v_overs
    from given_up g;
    if v_keys is not null then
        perform /*:*/free_next(v_keys, v_overs);
    end if;
end
$body$;

-- Joins whose deadline has passed, and messages that were not claimed before their expiry: the number of those, and the joins.
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
    v_now timestamptz := clock_timestamp();
    v_expired bigint;
    v_messages uuid[];
begin
    perform /*:*/require_read_committed();
    return query select null::bigint, j.* from /*:*/expire_joins(max_messages, null) j;

    select g.expired, g.messages into v_expired, v_messages from /*:*/give_up_expired($1, v_now) g;
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
-- are locked, so that a requeue, which un-parks in a second statement, comes either wholly before or wholly after. The others are
-- locked as give_up_expired does it.
create or replace function /*:*/park(max_messages bigint default 1000)
returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
as $body$
declare
    v_now timestamptz := clock_timestamp();
    v_leased int8multirange;
    v_behind bigint[];
    v_parked bigint;
begin
    max_messages := coalesce(max_messages, 1000);
    perform /*:*/require_read_committed();
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
    )
    select array_agg(b.seq) into v_behind from behind b;
    v_leased := /*:*/leased();
    update /*:*/outbox o set due_at = 'infinity', born = null
    where o.seq = any(v_behind) and not v_leased @> o.seq;
    get diagnostics v_parked = row_count;
    return v_parked;
end
$body$;
