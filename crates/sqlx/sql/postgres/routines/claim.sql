-- Takes messages that can start now.
--
-- The index outbox_ready serves it: one range (priority, due_at <= now) per priority that occurs, in the order of the
-- answer, so that neither scheduled nor finished messages are walked, and outbox_key answers whether it is a message's
-- turn in its key. What is leased, and what is paused, is read once, into variables. Nothing is locked and nothing is
-- changed but for the lease that is written: the gate keeps others out.
--
-- Entries of what was delivered stay in the index until vacuum may remove them; while another transaction is open for long,
-- for ever. A claim that had to walk over many leaves a mark where it found the first message, and the next ones begin there.
-- What is committed late, or released, may be below a mark: so marks stay a second behind, and from time to time (a fiftieth of
-- the time) a claim walks from the beginning.
--
-- Nor may a claim walk over all that waits for its turn in its key, again and again. One that took long for what it found is
-- remembered, and for ten times as long the others go from key to key instead, and look at the first message of each.
create or replace function /*:*/claim_all(
    worker text, max_messages bigint, lease interval, topics text[], topic_prefixes text[]
)
returns table (
    seq bigint, epoch integer, message_id uuid, topic text, key text, order_policy smallint, payload bytea,
    content_type text, headers text, correlation_id text, aggregate_type text, aggregate_id text, tenant_id text,
    priority smallint, attempts integer, lease_losses integer, occurred_at timestamptz, created_at timestamptz,
    due_at timestamptz, expires_at timestamptz, failing_since timestamptz, handled text
)
language plpgsql volatile
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $body$
#variable_conflict use_column
declare
    v_lease bigint;
    v_leased int8multirange;
    v_paused text[];
    v_paused_prefixes text[];
    v_suspect bigint;
    v_overdue boolean;
    v_again timestamptz;
    v_key text;
    v_chosen bigint[];
    v_priorities integer[] := '{}';
    v_firsts timestamptz[] := '{}';
    v_last integer := -40000;
    v_mark record;
    v_found integer;
    v_low timestamptz;
    v_first timestamptz;
    v_began timestamptz;
    v_took interval;
begin
    perform /*:*/gate();
    v_lease := (select coalesce(max(m.lease), 0) from /*:*/outbox_mark m);
    v_leased := (select coalesce(range_agg(i), '{}')
                 from /*:*/outbox_lease l cross join lateral unnest(l.items) i where l.id >= v_lease);
    select coalesce(array_agg(p.topics) filter (where p.topics not like '%*'), '{}'),
           coalesce(array_agg(left(p.topics, -1)) filter (where p.topics like '%*'), '{}')
    into v_paused, v_paused_prefixes
    from /*:*/outbox_pause p;

    select w.again_at, w.last_key into v_again, v_key from /*:*/outbox_walk w;

    -- A suspect is taken alone, so that no neighbour is blamed if it kills this worker, too: after the clean ones, but
    -- before them once it has waited for longer than the lease, so that a steady load cannot starve it.
    select o.seq, o.due_at < statement_timestamp() - $3
    into v_suspect, v_overdue
    from /*:*/outbox o
    where o.state = 0 and o.lease_losses > 0 and o.due_at <= statement_timestamp() and not v_leased @> o.seq
      and (o.expires_at is null or o.expires_at > statement_timestamp())
      and (($4 is null and $5 is null) or o.topic = any($4) or o.topic ^@ any($5))
      and not (o.topic = any(v_paused) or o.topic ^@ any(v_paused_prefixes))
      and (o.key is null or not exists (
          select from /*:*/outbox e
          where e.key = o.key and e.seq < o.seq
            and (e.state in (0, 1) or (e.state = 3 and e.order_policy <> 2 and e.error_class not in (6, 8)))))
    order by o.priority, o.due_at, o.seq
    limit 1;

    if v_overdue is distinct from true then
        loop
            select m.* into v_mark from /*:*/outbox_mark m where m.priority > v_last order by m.priority limit 1;
            v_began := clock_timestamp();
            v_found := null;
            if v_mark.clear_until is null or v_mark.clear_until <= statement_timestamp() then
                select o.priority into v_found from /*:*/outbox o
                where o.state = 0 and o.lease_losses = 0
                  and o.priority > v_last and o.priority < coalesce(v_mark.priority, 40000)
                order by o.priority limit 1;
                v_took := clock_timestamp() - v_began;
                if v_found is null and v_took > interval '1 millisecond' then
                    -- Traces of priorities that have nothing left. Behind the last priority there is, the mark is the largest.
                    insert into /*:*/outbox_mark as m (priority, low, until, clear_until, lease)
                    values (coalesce(v_mark.priority, 32767), coalesce(v_mark.low, '-infinity'),
                            coalesce(v_mark.until, statement_timestamp() + 50 * v_took), statement_timestamp() + 50 * v_took,
                            v_lease)
                    on conflict (priority) do update set clear_until = excluded.clear_until;
                    v_began := clock_timestamp();
                end if;
            end if;
            v_last := coalesce(v_found, v_mark.priority);
            exit when v_last is null;
            v_low := case when v_found is null and v_mark.until > statement_timestamp() then v_mark.low else '-infinity' end;
            select o.due_at into v_first from /*:*/outbox o
            where o.state = 0 and o.lease_losses = 0 and o.priority = v_last and o.due_at >= v_low and not v_leased @> o.seq
            order by o.due_at, o.seq limit 1;
            v_took := clock_timestamp() - v_began;
            if v_took > interval '1 millisecond' then
                insert into /*:*/outbox_mark as m (priority, low, until, lease)
                values (v_last, least(v_first, statement_timestamp() - interval '1 second'),
                        case when v_low = '-infinity' then statement_timestamp() + 50 * v_took else v_mark.until end,
                        coalesce((select min(l.id) from /*:*/outbox_lease l where l.id >= v_lease), v_lease))
                on conflict (priority) do update set low = excluded.low, until = excluded.until, lease = excluded.lease;
            elsif v_found is null and v_low = '-infinity' then
                delete from /*:*/outbox_mark m where m.priority = v_last;
            end if;
            if v_first <= statement_timestamp() then
                v_priorities := v_priorities || v_last;
                v_firsts := v_firsts || v_first;
            end if;
        end loop;

        if v_again > statement_timestamp() then
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
                      and o.due_at >= p.first and o.due_at <= statement_timestamp() and not v_leased @> o.seq
                    order by o.due_at, o.seq
                    limit $2
                ) o
                where o.key is null
            ),
            chosen as (
                select o.seq, o.priority, o.due_at
                from (select l.seq from looked_at l where not v_leased @> l.seq union all select a.seq from ahead a) c
                join /*:*/outbox o on o.seq = c.seq
                where o.state = 0 and o.lease_losses = 0 and o.due_at <= statement_timestamp()
                  and (o.expires_at is null or o.expires_at > statement_timestamp())
                  and (($4 is null and $5 is null) or o.topic = any($4) or o.topic ^@ any($5))
                  and not (o.topic = any(v_paused) or o.topic ^@ any(v_paused_prefixes))
                order by o.priority, o.due_at, o.seq
                limit $2
            )
            select (select array_agg(c.seq order by c.priority, c.due_at, c.seq) from chosen c),
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

    if v_chosen is null and v_overdue is distinct from true then
        v_began := clock_timestamp();
        return query
        with picked as materialized (
            select due.*
            from unnest(v_priorities, v_firsts) p (priority, first)
            cross join lateral (
                select o.* from /*:*/outbox o
                where o.state = 0 and o.lease_losses = 0 and o.priority = p.priority
                  and o.due_at >= p.first
                  and o.due_at <= statement_timestamp()
                  and not v_leased @> o.seq
                  and (o.expires_at is null or o.expires_at > statement_timestamp())
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
        ),
        taken as (
            insert into /*:*/outbox_lease (leased_until, worker, items)
            -- Neighbours, as a backlog has them, need not be put together one by one.
            select statement_timestamp() + $3, $1,
                   case when a.last - a.first + 1 = a.taken then int8multirange(int8range(a.first, a.last, '[]'))
                        else (select range_agg(int8range(p.seq, p.seq, '[]')) from picked p) end
            from (select count(*) as taken, min(p.seq) as first, max(p.seq) as last from picked p) a
            where a.taken > 0
        )
        select p.seq, p.epoch + 1, p.message_id, p.topic, p.key, p.order_policy, p.payload, p.content_type, p.headers,
               p.correlation_id, p.aggregate_type, p.aggregate_id, p.tenant_id, p.priority, p.attempts, p.lease_losses,
               p.occurred_at, p.created_at, p.due_at, p.expires_at, p.failing_since, p.handled
        from picked p;
        get diagnostics v_found = row_count;
        v_took := clock_timestamp() - v_began;
        if v_took > interval '5 milliseconds' + v_found * interval '20 microseconds' then
            insert into /*:*/outbox_walk as w (again_at) values (statement_timestamp() + 10 * v_took)
            on conflict (one) do update set again_at = excluded.again_at;
        elsif v_again is not null then
            delete from /*:*/outbox_walk;
        end if;
        if v_found > 0 then
            return;
        end if;
    end if;

    v_chosen := coalesce(v_chosen, array[v_suspect]);
    if v_chosen[1] is not null then
        insert into /*:*/outbox_lease (leased_until, worker, items)
        select statement_timestamp() + $3, $1, range_agg(int8range(c.seq, c.seq, '[]')) from unnest(v_chosen) c (seq);
        return query
        select p.seq, p.epoch + 1, p.message_id, p.topic, p.key, p.order_policy, p.payload, p.content_type, p.headers,
               p.correlation_id, p.aggregate_type, p.aggregate_id, p.tenant_id, p.priority, p.attempts, p.lease_losses,
               p.occurred_at, p.created_at, p.due_at, p.expires_at, p.failing_since, p.handled
        from unnest(v_chosen) with ordinality c (seq, place) join /*:*/outbox p on p.seq = c.seq
        order by c.place;
    end if;
end
$body$;

-- The same for programs in other languages. Topics are named in full, or by their beginning and a *, as in order.*; null
-- means all.
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
as $body$
#variable_conflict use_column
begin
    perform /*:*/require(
        octet_length(worker) between 1 and 100, 'worker has ' || coalesce(octet_length(worker), 0) || ' bytes',
        'Give it 1 to 100 bytes.');
    perform /*:*/require(
        max_messages between 1 and 10000, 'max_messages is ' || coalesce(max_messages::text, 'null'),
        'Give it 1 to 10000.');
    perform /*:*/require_lease(lease);
    topic_prefixes := topic_prefixes || array(select left(t, -1) from unnest(topics) t where t like '%*');
    topics := case when topics is not null then array(select t from unnest(topics) t where t not like '%*') end;
    if topics is null and cardinality(topic_prefixes) = 0 then
        topic_prefixes := null;
    end if;
    return query select * from /*:*/claim_all(worker, max_messages, lease, topics, topic_prefixes);
end
$body$;
