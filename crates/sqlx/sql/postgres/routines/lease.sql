-- Leases. A message is leased if its row says so (born leased), or if its seq is in the items of a lease and its row is ready. The
-- epoch of a message in a lease is the lease's token, and its row still has an older one. Acks, releases, retries and reap take the
-- message out of its lease, and write the token into its row or delete the row. See ADR 0033.

-- These are in plpgsql because it keeps their plans; a function in SQL is planned at every call.

-- A token that no lease has.
create or replace function /*:*/new_token()
returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $body$
declare
    v_token integer;
begin
    loop
        -- From the server's strong source of random numbers: 1 to 2^31 - 1.
        v_token := 1 + (('x' || left(gen_random_uuid()::text, 8))::bit(32)::bigint % 2147483647);
        exit when not exists (select from /*:*/outbox_lease l where l.token = v_token);
    end loop;
    return v_token;
end
$body$;

-- The leases of these transactions.
create or replace function /*:*/leases_since(lease_from xid8, lease_late xid8[])
returns setof /*:*/outbox_lease
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $body$
begin
    return query
    select l.* from /*:*/outbox_lease l where l.born >= lease_from
    union all
    select l.* from unnest(lease_late) x join /*:*/outbox_lease l on l.born = x where x < lease_from;
end
$body$;

-- The seqs of all messages that are in one. Those that are done may be among them.
create or replace function /*:*/leased_since(lease_from xid8, lease_late xid8[])
returns int8multirange
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $body$
begin
    return (
        select coalesce(range_agg(i), '{}')
        from (
            select l.items from /*:*/outbox_lease l where l.born >= lease_from
            union all
            select l.items from unnest(lease_late) x join /*:*/outbox_lease l on l.born = x
            where x < lease_from
        ) l
        cross join lateral unnest(l.items) i);
end
$body$;

-- Of these seqs, those that are in a lease of these transactions.
create or replace function /*:*/leased_among(items int8multirange, lease_from xid8, lease_late xid8[])
returns int8multirange
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $body$
begin
    return (
        select coalesce(range_agg(i), '{}')
        from (
            select l.items from /*:*/outbox_lease l where l.born >= $2 and l.items && $1
            union all
            select l.items from unnest($3) x join /*:*/outbox_lease l on l.born = x
            where x < $2 and l.items && $1
        ) l
        cross join lateral unnest(l.items * $1) i);
end
$body$;

-- The seqs of all messages that are in a lease.
create or replace function /*:*/leased()
returns int8multirange
language plpgsql stable
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
as $body$
declare
    v_cursor /*:*/outbox_cursor := /*:*/newest_cursor();
begin
    return /*:*/leased_since(v_cursor.lease_from, v_cursor.lease_late);
end
$body$;

-- These seqs as ranges. Neighbours, as most are, need no sorting.
create or replace function /*:*/ranges_of(seqs bigint[])
returns int8multirange
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $body$
begin
    return (
        select case when max(s) - min(s) + 1 = count(*) then int8multirange(int8range(min(s), max(s), '[]'))
                    else range_agg(int8range(s, s, '[]')) end
        from unnest(seqs) s);
end
$body$;

-- Takes messages out of the leases with these tokens; a lease of which nothing else is left goes away. A renewal that is waited for
-- may have cut a lease in two, so this looks until it finds nothing more.
create or replace function /*:*/let_go(tokens integer[], over bigint[])
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $body$
declare
    v_over int8multirange := (select coalesce(range_agg(int8range(s, s, '[]')), '{}') from unnest(over) s);
begin
    while exists (select from /*:*/outbox_lease l where l.token = any(tokens) and l.items && v_over) loop
        with held as materialized (
            select l.id, l.items - v_over as rest from /*:*/outbox_lease l
            where l.token = any(tokens) and l.items && v_over
            order by l.id
            for update
        ),
        smaller as (
            update /*:*/outbox_lease l set items = h.rest from held h where l.id = h.id and not isempty(h.rest)
        )
        delete from /*:*/outbox_lease l using held h where l.id = h.id and isempty(h.rest);
    end loop;
end
$body$;

-- Takes everything that is over out of these leases, which the caller has locked.
create or replace function /*:*/trim_leases(leases bigint[])
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $body$
begin
    with rest as materialized (
        select l.id, range_agg(int8range(o.seq, o.seq, '[]')) as items
        from /*:*/outbox_lease l cross join lateral unnest(l.items) i
        join /*:*/outbox o on o.seq >= lower(i) and o.seq < upper(i)
        where l.id = any(leases) and ((o.state = 0 and o.epoch <> l.token) or (o.state = 1 and o.epoch = l.token))
        group by l.id
    ),
    smaller as (
        update /*:*/outbox_lease l set items = r.items from rest r where l.id = r.id and l.items <> r.items
    )
    delete from /*:*/outbox_lease l where l.id = any(leases) and l.id not in (select r.id from rest r);
end
$body$;

-- Removes the leases with these tokens of which nothing is left but these seqs, which were acked. Acks do not change a lease of
-- which something is left; one that another session has locked is not waited for, and reap removes it.
create or replace function /*:*/end_leases(tokens integer[], acked int8multirange)
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $body$
begin
    delete from /*:*/outbox_lease l
    where l.id = any(array(
        select f.id from /*:*/outbox_lease f
        where f.token = any(tokens)
          and not exists (
              select from unnest(f.items - acked) i
              join /*:*/outbox o on o.seq >= lower(i) and o.seq < upper(i)
              where (o.state = 0 and o.epoch <> f.token) or (o.state = 1 and o.epoch = f.token))
        for update skip locked));
end
$body$;

-- Brings messages whose key has become free to where claims find them: of each key the first one behind the message that is over.
-- Claims may have passed it while it waited (see advance_cursor). One that another session has locked is noted instead.
create or replace function /*:*/free_next(keys text[], overs bigint[])
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $body$
begin
    with next as materialized (
        select n.seq, f.key, f.over
        from unnest(keys, overs) f (key, over)
        cross join lateral (
            select o.seq, o.state, o.born from /*:*/outbox o
            where o.key = f.key and o.seq > f.over
              and (o.state in (0, 1) or (o.state = 3 and o.order_policy <> 2 and o.error_class not in (6, 8)))
            order by o.key, o.seq
            limit 1
        ) n
        where n.state = 0 and n.born is not null
    ),
    freed as (
        update /*:*/outbox o set born = null
        where o.seq = any(array(
            select l.seq from /*:*/outbox l
            where l.seq = any(array(select n.seq from next n)) and l.state = 0
            order by l.seq
            for update skip locked))
        returning o.seq
    )
    insert into /*:*/outbox_turn (key, over)
    select n.key, n.over from next n where n.seq <> all(array(select seq from freed));
end
$body$;

-- Does what free_next had to leave.
create or replace function /*:*/take_turns()
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $body$
declare
    v_keys text[];
    v_overs bigint[];
begin
    with gone as (
        delete from /*:*/outbox_turn t
        where t.ctid = any(array(select l.ctid from /*:*/outbox_turn l limit 1000 for update skip locked))
        returning t.key, t.over
    )
    select array_agg(g.key), array_agg(g.over) into v_keys, v_overs from gone g;
    if v_keys is not null then
        perform /*:*/free_next(v_keys, v_overs);
    end if;
end
$body$;
