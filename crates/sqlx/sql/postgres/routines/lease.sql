-- Who holds what. A message is leased if its row says so (born leased), or if its seq is in the items of a lease.
-- A row that is in a lease has an epoch that is a step before the lease's; whatever ends the lease, but for an ack that deletes,
-- writes the lease's. So an epoch is never given out twice, although a claim changes no message. All leases have the same step.

-- These are in plpgsql because it keeps their plans; a function in SQL is planned at every call.

-- One at a time: whoever takes messages, or changes messages that nobody may hold. After this, the next statement sees every
-- lease there is, and none is added until the transaction ends. Always taken before the lock of any row.
create or replace function /*:*/gate()
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $body$
begin
    perform /*:*/require_read_committed();
    perform pg_advisory_xact_lock(1886351220 * 4294967296 + '/*:*/outbox_lease'::regclass::oid::bigint);
end
$body$;

-- The server has crashed since the last claim: what is not logged is gone, and so may be claims that were not on disk yet. Whoever
-- made them may still be at work, at epochs of which nothing is written anywhere. From now on epochs go one step further than
-- those; and what is leased still, at the old step, is so in its own row.
create or replace function /*:*/note_crash()
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set jit = off
as $body$
begin
    -- Others wait at the gate until this is on disk: no claim may be made at a step that another crash would give out again.
    perform set_config('synchronous_commit', 'on', true);
    perform from /*:*/outbox_lease l order by l.id for update;
    update /*:*/outbox o
    set state = 1, epoch = o.epoch + l.step, leased_until = l.leased_until, worker = l.worker
    from /*:*/outbox_lease l cross join lateral unnest(l.items) i
    where o.seq >= lower(i) and o.seq < upper(i) and o.state = 0;
    delete from /*:*/outbox_lease;
    update /*:*/outbox_step set step = step + 1;
    insert into /*:*/outbox_awake default values;
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
begin
    return (select coalesce(range_agg(i), '{}')
            from /*:*/outbox_lease l cross join lateral unnest(l.items) i
            where l.id >= (select coalesce(max(m.lease), 0) from /*:*/outbox_mark m));
end
$body$;

-- The callers of these two have set everything else already; setting it once more, for each call, takes longer than the rest.

-- Takes messages out of their leases.
create or replace function /*:*/let_go(leases bigint[], over int8multirange)
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $body$
begin
    update /*:*/outbox_lease l set items = l.items - over
    where l.id = any(leases) and l.items && over and not l.items <@ over;
    delete from /*:*/outbox_lease l where l.id = any(leases) and l.items <@ over;
end
$body$;

-- Locks the leases that these messages are in, in the order of their ids: which, whose, all that is in them, and their step.
create or replace function /*:*/lock_leases(
    asked int8multirange, out leases bigint[], out workers text[], out leased int8multirange, out step integer
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $body$
declare
    v_before bigint[];
begin
    perform /*:*/require_read_committed();
    for v_look in 1..10 loop
        select array_agg(distinct l.id), array_agg(distinct l.worker), coalesce(range_agg(i), '{}'), min(l.step)
        into leases, workers, leased, step
        from (select l.id, l.worker, l.items, l.step from /*:*/outbox_lease l
              where l.id >= (select coalesce(max(m.lease), 0) from /*:*/outbox_mark m) and l.items && asked
              order by l.id
              for update) l
        cross join lateral unnest(l.items) i;
        -- While a lock was waited for, a renewal may have moved some of them to a lease that this look could not see.
        exit when asked <@ leased or (v_look > 1 and leases is not distinct from v_before);
        v_before := leases;
    end loop;
end
$body$;
