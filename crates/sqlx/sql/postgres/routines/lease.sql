-- Who holds what. A message is leased if its row says so (born leased), or if its seq is in the items of a lease.
-- A row that is in a lease has the epoch before the lease's; whatever ends the lease, but for an ack that deletes, writes the
-- next one. So an epoch is never given out twice, although a claim changes no message.

-- These are in plpgsql because it keeps their plans; a function in SQL is planned at every call.

-- One at a time: whoever takes messages, or changes messages that nobody may hold. After this, the next statement sees every
-- lease there is, and none is added until the transaction ends. Always taken before the lock of any row.
create or replace function /*:*/gate()
returns void
language plpgsql volatile
as $body$
begin
    perform pg_advisory_xact_lock(1886351220 * 4294967296 + '/*:*/outbox_lease'::regclass::oid::bigint);
end
$body$;

-- The seqs of all messages that are in a lease.
create or replace function /*:*/leased()
returns int8multirange
language plpgsql stable
set jit = off
set enable_seqscan = off
as $body$
begin
    return (select coalesce(range_agg(i), '{}')
            from /*:*/outbox_lease l cross join lateral unnest(l.items) i
            where l.id >= (select coalesce(max(m.lease), 0) from /*:*/outbox_mark m));
end
$body$;

-- Whoever calls these two has forbidden what they must not do; setting it once more, for each call, takes longer than the rest.

-- Takes messages out of their leases.
create or replace function /*:*/let_go(leases bigint[], over int8multirange)
returns void
language plpgsql volatile
as $body$
begin
    update /*:*/outbox_lease l set items = l.items - over
    where l.id = any(leases) and l.items && over and not l.items <@ over;
    delete from /*:*/outbox_lease l where l.id = any(leases) and l.items <@ over;
end
$body$;

-- Locks the leases that these messages are in, in the order of their ids: which, whose, and all that is in them.
create or replace function /*:*/lock_leases(
    asked int8multirange, out leases bigint[], out workers text[], out leased int8multirange
)
language plpgsql volatile
as $body$
declare
    v_before bigint[];
begin
    for v_look in 1..10 loop
        select array_agg(distinct l.id), array_agg(distinct l.worker), coalesce(range_agg(i), '{}')
        into leases, workers, leased
        from (select id, worker, items from /*:*/outbox_lease
              where id >= (select coalesce(max(m.lease), 0) from /*:*/outbox_mark m) and items && asked
              order by id
              for update) l
        cross join lateral unnest(l.items) i;
        -- While a lock was waited for, a renewal may have moved some of them to a lease that this look could not see.
        exit when asked <@ leased or (v_look > 1 and leases is not distinct from v_before);
        v_before := leases;
    end loop;
end
$body$;
