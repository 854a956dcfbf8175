-- The priority between two that has nothing left but traces in the index, and most of them; null if none has many. What is no
-- longer there cannot be asked for its priority: only how far a walk was tells, over ever smaller halves.
create or replace function /*:*/crowded(after integer, before integer, walked bigint, many bigint)
returns integer
language plpgsql stable
set search_path = pg_catalog, pg_temp
set jit = off
as $body$
declare
    v_index oid := '/*:*/outbox_ready'::regclass;
    v_middle integer;
    v_here bigint;
begin
    loop
        v_middle := after + (before - after) / 2;
        v_here := pg_stat_get_xact_tuples_returned(v_index);
        perform count(*) from /*:*/outbox o
        where o.state = 0 and o.lease_losses = 0 and o.priority > after and o.priority <= v_middle;
        v_here := pg_stat_get_xact_tuples_returned(v_index) - v_here;
        if before - after = 2 then
            return case when v_here > many then v_middle end;
        elsif v_here * 2 > walked then
            before := v_middle + 1;
            walked := v_here;
        else
            after := v_middle;
            walked := walked - v_here;
        end if;
    end loop;
end
$body$;

-- Leaves a mark where a claim found the first message of a priority, after it had walked over so many entries: the next ones
-- begin there.
--
-- What was passed over is gone, or not committed yet. Who began to write only lately is no danger: a message is due when it is
-- written, or later, and a mark stays three quarters of a second behind. Of those who have been at it for longer the mark knows
-- the numbers, and holds until one of them ends. Which ones these are, is told by the number of who left a mark a quarter to
-- half a second ago; where that is not known, all who are writing count as such.
create or replace function /*:*/leave_mark(
    priority integer, first timestamptz, walked bigint, is_from_beginning boolean, snapshot pg_snapshot, lease bigint
)
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set jit = off
as $body$
#variable_conflict use_column
declare
    v_mark /*:*/outbox_mark;
    v_mine xid8 := pg_current_xact_id();
    v_writers xid8[];
    v_age interval;
begin
    select m.* into v_mark from /*:*/outbox_mark m where m.priority = $1;
    if $4 then
        -- Who has ended has nothing left that was not walked over.
        v_mark.open := array(select x from unnest(v_mark.open) x where not pg_visible_in_snapshot(x, $5));
        -- At half a microsecond an entry: a fiftieth of the time, or a fifth if something may be below.
        v_mark.until := clock_timestamp() + $3 * interval '25 microseconds';
        v_mark.again_at := clock_timestamp() + $3 * interval '2.5 microseconds';
    end if;
    v_age := coalesce(statement_timestamp() - v_mark.seen_at, interval '1 hour');
    if v_age > interval '250 milliseconds' then
        if v_age <= interval '500 milliseconds' then
            v_writers := array(select x from pg_snapshot_xip($5) x where x < v_mark.seen);
        else
            -- A snapshot does not list those who began after the last one that has ended. Savepoints have numbers, too.
            v_writers := array(select pg_snapshot_xip($5)) || array(
                select n::text::xid8
                from generate_series(pg_snapshot_xmax($5)::text::bigint, v_mine::text::bigint - 1) n
                limit 1000);
        end if;
        v_mark.open := array(select unnest(v_mark.open) union select unnest(v_writers));
        v_mark.seen := v_mine;
        v_mark.seen_at := statement_timestamp();
    end if;
    insert into /*:*/outbox_mark (priority, low, until, lease, again_at, open, seen, seen_at)
    values ($1, least($2, v_mark.seen_at - interval '750 milliseconds'), v_mark.until,
            coalesce((select min(l.id) from /*:*/outbox_lease l where l.id >= $6), $6),
            v_mark.again_at, v_mark.open, v_mark.seen, v_mark.seen_at)
    on conflict (priority) do update
    set low = excluded.low, until = excluded.until, lease = excluded.lease, again_at = excluded.again_at, open = excluded.open,
        seen = excluded.seen, seen_at = excluded.seen_at;
end
$body$;

-- Takes messages that can start now.
--
-- The index outbox_ready serves it: one range (priority, due_at <= now) per priority that occurs, in the order of the
-- answer, so that neither scheduled nor finished messages are walked, and outbox_key answers whether it is a message's
-- turn in its key. What is leased, and what is paused, is read once, into variables. Nothing is locked and nothing is
-- changed but for the lease that is written: the gate keeps others out.
--
-- Entries of what was delivered stay in the index until vacuum may remove them; while another transaction is open for long,
-- for ever. A claim that had to walk over many leaves a mark where it found the first message, and the next ones begin there.
-- What is committed late, or released, may be below a mark, and brings the next walk from the beginning forward. Whatever else
-- may be there, such as a message that somebody wrote with a due time long past, is found by walks that are made from time to
-- time.
--
-- Nor may a claim walk over all that waits for its turn in its key, again and again. One that walked far for what it found is
-- remembered, and for some ten times as long (at five microseconds an entry, because each is asked whether it is its turn) the
-- others go from key to key instead, and look at the first message of each.
--
-- How far a claim walked is counted, not timed: a busy machine must not hide messages. The counts are this session's own; with
-- track_counts off they stand still, and there are no marks.
--
-- Answers whole rows as they are stored, because building others would take most of the time: the epoch of the lease is a step
-- further than the row's, which the caller adds, as he has read it. They come in no special order.
--
-- What a transaction of its own has claimed need not be on disk when it is answered: see note_crash.
create or replace function /*:*/claim_all(
    worker text, max_messages bigint, lease interval, topics text[], topic_prefixes text[], step integer,
    is_own_transaction boolean
)
returns setof /*:*/outbox
language plpgsql volatile rows 50
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $body$
#variable_conflict use_column
declare
    c_far constant bigint := 2000;  -- entries, about a millisecond
    v_index oid := '/*:*/outbox_ready'::regclass;
    v_now timestamptz;
    v_before bigint;
    v_walked bigint;
    v_is_awake boolean;
    v_step integer;
    v_snapshot pg_snapshot;
    v_lease bigint;
    v_leased int8multirange;
    v_paused text[];
    v_paused_prefixes text[];
    v_are_marks boolean;
    v_are_suspects boolean;
    v_suspect bigint;
    v_overdue boolean;
    v_again timestamptz;
    v_key text;
    v_chosen bigint[];
    v_priorities integer[] := '{}';
    v_firsts timestamptz[] := '{}';
    v_last integer := -40000;
    v_mark /*:*/outbox_mark;
    v_priority integer;
    v_low timestamptz;
    v_first timestamptz;
    v_lowest bigint;
    v_highest bigint;
    v_are_neighbours boolean;
    v_row /*:*/outbox;
begin
    if $7 then
        perform set_config('synchronous_commit', 'off', true);
    end if;
    perform /*:*/gate();
    loop
        select exists (select from /*:*/outbox_awake), s.step, pg_current_snapshot(), m.lease, m.marks > 0, w.again_at,
               w.last_key,
               (select coalesce(range_agg(i), '{}')
                from /*:*/outbox_lease l cross join lateral unnest(l.items) i where l.id >= m.lease),
               array(select p.topics from /*:*/outbox_pause p where p.topics not like '%*'),
               array(select left(p.topics, -1) from /*:*/outbox_pause p where p.topics like '%*'),
               exists (select from /*:*/outbox o where o.state = 0 and o.lease_losses > 0)
        into v_is_awake, v_step, v_snapshot, v_lease, v_are_marks, v_again, v_key, v_leased, v_paused, v_paused_prefixes,
             v_are_suspects
        from (select coalesce(max(m.lease), 0) as lease, count(*) as marks from /*:*/outbox_mark m) m
        cross join /*:*/outbox_step s
        left join /*:*/outbox_walk w on true;
        exit when v_is_awake;
        perform /*:*/note_crash();
    end loop;
    -- After the gate, which may have been waited for: a lease lasts from when it is granted.
    v_now := clock_timestamp();

    -- A suspect is taken alone, so that no neighbour is blamed if it kills this worker, too: after the clean ones, but
    -- before them once it has waited for longer than the lease, so that a steady load cannot starve it.
    if v_are_suspects then
        select o.seq, o.due_at < v_now - $3
        into v_suspect, v_overdue
        from /*:*/outbox o
        where o.state = 0 and o.lease_losses > 0 and o.due_at <= v_now and not v_leased @> o.seq
          and (o.expires_at is null or o.expires_at > v_now)
          and (($4 is null and $5 is null) or o.topic = any($4) or o.topic ^@ any($5))
          and not (o.topic = any(v_paused) or o.topic ^@ any(v_paused_prefixes))
          and (o.key is null or not exists (
              select from /*:*/outbox e
              where e.key = o.key and e.seq < o.seq
                and (e.state in (0, 1) or (e.state = 3 and e.order_policy <> 2 and e.error_class not in (6, 8)))))
        order by o.priority, o.due_at, o.seq
        limit 1;
    end if;

    if v_overdue is distinct from true then
        -- The first message of each priority.
        loop
            v_mark := null;
            if v_are_marks then
                select m.* into v_mark from /*:*/outbox_mark m where m.priority > v_last order by m.priority limit 1;
            end if;
            v_before := pg_stat_get_xact_tuples_returned(v_index);
            v_low := '-infinity';
            select o.priority, o.due_at into v_priority, v_first from /*:*/outbox o
            where o.state = 0 and o.lease_losses = 0
              and o.priority > v_last and o.priority < coalesce(v_mark.priority, 40000) and not v_leased @> o.seq
            order by o.priority, o.due_at, o.seq limit 1;
            v_walked := pg_stat_get_xact_tuples_returned(v_index) - v_before;
            if v_priority is null and v_walked > c_far then
                v_priority := /*:*/crowded(v_last, coalesce(v_mark.priority, 40000), v_walked, c_far);
            end if;
            if v_priority is null then
                v_priority := v_mark.priority;
                exit when v_priority is null;
                if v_mark.until > v_now and (
                    v_mark.again_at > v_now
                    or not exists (select from unnest(v_mark.open) x where pg_visible_in_snapshot(x, v_snapshot)))
                then
                    v_low := v_mark.low;
                end if;
                v_before := pg_stat_get_xact_tuples_returned(v_index);
                select o.due_at into v_first from /*:*/outbox o
                where o.state = 0 and o.lease_losses = 0 and o.priority = v_priority and o.due_at >= v_low
                  and not v_leased @> o.seq
                order by o.due_at, o.seq limit 1;
                v_walked := pg_stat_get_xact_tuples_returned(v_index) - v_before;
            end if;
            if v_walked > c_far then
                perform /*:*/leave_mark(v_priority, v_first, v_walked, v_low = '-infinity', v_snapshot, v_lease);
            elsif v_priority = v_mark.priority and v_low = '-infinity' then
                delete from /*:*/outbox_mark m where m.priority = v_priority;
            end if;
            if v_first <= v_now then
                v_priorities := v_priorities || v_priority;
                v_firsts := v_firsts || v_first;
            end if;
            v_last := v_priority;
        end loop;

        if v_again > v_now and v_priorities <> '{}' then
            with recursive heads (key, seq) as (
                (select e.key, e.seq from /*:*/outbox e
                 where e.key > v_key
                   and (e.state in (0, 1) or (e.state = 3 and e.order_policy <> 2 and e.error_class not in (6, 8)))
                 order by e.key, e.seq limit 1)
                union all
                select n.key, n.seq
                from heads h cross join lateral (
                    select e.key, e.seq from /*:*/outbox e
                    where e.key > h.key
                      and (e.state in (0, 1) or (e.state = 3 and e.order_policy <> 2 and e.error_class not in (6, 8)))
                    order by e.key, e.seq limit 1
                ) n
            ),
            looked_at as materialized (select h.key, h.seq from heads h limit 2 * $2),
            ahead as materialized (
                select o.seq
                from unnest(v_priorities, v_firsts) p (priority, first)
                cross join lateral (
                    select o.seq, o.key from /*:*/outbox o
                    where o.state = 0 and o.lease_losses = 0 and o.priority = p.priority
                      and o.due_at >= p.first and o.due_at <= v_now and not v_leased @> o.seq
                    order by o.due_at, o.seq
                    limit $2
                ) o
                where o.key is null
            ),
            chosen as (
                select o.seq, o.priority, o.due_at
                from (select l.seq from looked_at l where not v_leased @> l.seq union all select a.seq from ahead a) c
                join /*:*/outbox o on o.seq = c.seq
                where o.state = 0 and o.lease_losses = 0 and o.due_at <= v_now
                  and (o.expires_at is null or o.expires_at > v_now)
                  and (($4 is null and $5 is null) or o.topic = any($4) or o.topic ^@ any($5))
                  and not (o.topic = any(v_paused) or o.topic ^@ any(v_paused_prefixes))
                order by o.priority, o.due_at, o.seq
                limit $2
            )
            select (select array_agg(c.seq) from chosen c),
                   (select case when count(*) = 2 * $2 then max(l.key) end from looked_at l)
            into v_chosen, v_key;
            -- The next one goes on where this one had enough, or begins anew.
            update /*:*/outbox_walk w set last_key = coalesce(v_key, '') where w.last_key <> coalesce(v_key, '');
            if v_chosen is null and v_suspect is null
               and exists (select from /*:*/outbox_lease l where l.id >= v_lease and l.worker = $1) then
                -- Who has something to settle will ask again when that is done.
                return;
            end if;
        end if;
    end if;

    if v_chosen is null and v_priorities <> '{}' then
        v_before := pg_stat_get_xact_tuples_returned(v_index);
        select array_agg(due.seq), min(due.seq), max(due.seq) into v_chosen, v_lowest, v_highest
        from (
            select due.seq
            from unnest(v_priorities, v_firsts) p (priority, first)
            cross join lateral (
                select o.seq from /*:*/outbox o
                where o.state = 0 and o.lease_losses = 0 and o.priority = p.priority
                  and o.due_at >= p.first
                  and o.due_at <= v_now
                  and not v_leased @> o.seq
                  and (o.expires_at is null or o.expires_at > v_now)
                  and (($4 is null and $5 is null) or o.topic = any($4) or o.topic ^@ any($5))
                  and not (o.topic = any(v_paused) or o.topic ^@ any(v_paused_prefixes))
                  and (o.key is null or not exists (
                      select from /*:*/outbox e
                      where e.key = o.key and e.seq < o.seq
                        and (e.state in (0, 1)
                             or (e.state = 3 and e.order_policy <> 2 and e.error_class not in (6, 8)))))
                order by o.due_at, o.seq
                limit $2
            ) due
            limit $2
        ) due;
        v_walked := pg_stat_get_xact_tuples_returned(v_index) - v_before;
        if v_walked > c_far + 20 * coalesce(cardinality(v_chosen), 0) then
            insert into /*:*/outbox_walk as w (again_at)
            values (clock_timestamp() + v_walked * interval '50 microseconds')
            on conflict (one) do update set again_at = excluded.again_at;
        elsif v_again is not null then
            delete from /*:*/outbox_walk;
        end if;
    end if;
    if v_chosen is null and v_suspect is not null then
        v_chosen := array[v_suspect];
    end if;

    if v_chosen is null then
        return;
    end if;
    -- Neighbours, as a backlog has them, need not be taken one by one.
    v_are_neighbours := coalesce(v_highest - v_lowest + 1 = cardinality(v_chosen), false);
    insert into /*:*/outbox_lease (leased_until, worker, items, step)
    values (v_now + $3, $1,
            case when v_are_neighbours then int8multirange(int8range(v_lowest, v_highest, '[]'))
                 else (select range_agg(int8range(c, c, '[]')) from unnest(v_chosen) c) end,
            v_step);
    if v_step <> $6 then
        -- A crash was noted after the caller had read the step.
        for v_row in select o.* from /*:*/outbox o where o.seq = any(v_chosen) loop
            v_row.epoch := v_row.epoch + v_step - $6;
            return next v_row;
        end loop;
    elsif v_are_neighbours then
        return query select o.* from /*:*/outbox o where o.seq between v_lowest and v_highest;
    else
        return query select o.* from /*:*/outbox o where o.seq = any(v_chosen);
    end if;
end
$body$;

-- The same for programs in other languages. Topics are named in full, or by their beginning and a *, as in order.*; null
-- means all. Null for the others means their default.
create or replace function /*:*/claim(
    worker text, max_messages bigint default 50, lease interval default interval '30 seconds',
    topics text[] default null, topic_prefixes text[] default null
)
returns table (
    seq bigint, epoch integer, message_id uuid, topic text, key text, order_policy smallint, payload bytea,
    content_type text, headers text, correlation_id text, aggregate_type text, aggregate_id text, tenant_id text,
    priority smallint, attempts integer, lease_losses integer, occurred_at timestamptz, created_at timestamptz,
    due_at timestamptz, expires_at timestamptz, failing_since timestamptz, handled text
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set jit = off
as $body$
#variable_conflict use_column
declare
    v_step integer;
begin
    max_messages := coalesce(max_messages, 50);
    lease := coalesce(lease, interval '30 seconds');
    perform /*:*/require(
        octet_length(worker) between 1 and 100, 'worker has ' || coalesce(octet_length(worker), 0) || ' bytes',
        'Give it 1 to 100 bytes.');
    perform /*:*/require(
        max_messages between 1 and 10000, 'max_messages is ' || max_messages, 'Give it 1 to 10000.');
    perform /*:*/require_lease(lease);
    topic_prefixes := topic_prefixes || array(select left(t, -1) from unnest(topics) t where t like '%*');
    topics := case when topics is not null then array(select t from unnest(topics) t where t not like '%*') end;
    if topics is null and cardinality(topic_prefixes) = 0 then
        topic_prefixes := null;
    end if;
    select s.step into v_step from /*:*/outbox_step s;
    return query
    select c.seq, c.epoch + v_step, c.message_id, c.topic, c.key, c.order_policy, c.payload, c.content_type, c.headers,
           c.correlation_id, c.aggregate_type, c.aggregate_id, c.tenant_id, c.priority, c.attempts, c.lease_losses,
           c.occurred_at, c.created_at, c.due_at, c.expires_at, c.failing_since, c.handled
    from /*:*/claim_all(worker, max_messages, lease, topics, topic_prefixes, v_step, false) c
    order by c.priority, c.due_at, c.seq;
end
$body$;
