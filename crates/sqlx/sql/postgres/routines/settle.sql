-- Settling: one function for a batch of any outcomes, and one per verb. Each answers 0 applied, 1 lost, 2 gone.
-- A max age is for how long a message may fail without a break for reasons that cost no attempt; null: for ever.
-- handled are the names of the handlers that are done with a message, one a line; null leaves them as they are.
-- If all are acks and were applied, that is answered once for all.
-- Leases are locked before messages, in the order of their ids, and messages in the order of seq, so that two settlements of
-- the same rows cannot deadlock; the gate, where something is released, before both. What is acked at one epoch, as nearly all
-- is, is changed at once; the rest is judged one by one.
-- Joins are counted by statements of their own, each with a snapshot that is newer than the locks of the messages: in one
-- statement with them, a step that was attached while its message's lock was waited for would not be seen. Joins that end
-- by it follow the answers, with no settled of their own; settle leaves them out.
create or replace function /*:*/settle_all(
    items bigint[], epochs integer[], outcomes smallint[], delays_us bigint[], classes smallint[], errors text[],
    max_attempts integer[], keep_done boolean default true, max_ages_us bigint[] default null,
    handled text[] default null
)
returns table (
    settled smallint, join_id uuid, status smallint, expected_steps integer, completed_steps integer,
    failed_steps integer
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $body$
#variable_conflict use_column
declare
    v_count integer := cardinality($1);
    v_releases boolean := 3 = any($3);
    v_leases bigint[];
    v_leased int8multirange;
    v_workers text[];
    v_step integer;
    v_epoch integer;
    v_acks bigint[];
    v_acked bigint[];
    v_settled smallint[];
    v_over bigint[];
    v_messages uuid[];
    v_ends smallint[];
    v_rest bigint[];
    v_rest_messages uuid[];
    v_rest_ends smallint[];
    v_now timestamptz;
begin
    if v_releases then
        -- A claim that is under way has read that they are leased, and may leave a mark above them.
        perform /*:*/gate();
    end if;
    select l.leases, l.workers, l.leased, l.step into v_leases, v_workers, v_leased, v_step
    from /*:*/lock_leases((
        select coalesce(range_agg(int8range(a, a, '[]')), '{}') from unnest($1) a where a > 0 and a < 9223372036854775807)) l;
    v_now := clock_timestamp();

    -- Of several workers' messages only the lease tells whose each is.
    if $8 and cardinality(v_workers) > 1 then
        v_acks := null;
    else
        select min(a.epoch) into v_epoch from unnest($2, $3) as a (epoch, outcome) where a.outcome = 0;
        select array_agg(a.seq) into v_acks
        from unnest($1, $2, $3, $10) as a (seq, epoch, outcome, handled)
        where a.outcome = 0 and a.epoch = v_epoch and (not $8 or a.handled is null);
    end if;
    if v_acks is not null and not $8 then
        with acked as (
            delete from /*:*/outbox o
            where o.seq = any(v_acks) and ((o.state = 0 and o.epoch = v_epoch - v_step and v_leased @> o.seq)
                                           or (o.state = 1 and o.epoch = v_epoch))
            returning o.seq, o.message_id
        )
        select array_agg(seq), array_agg(message_id) into v_acked, v_messages from acked;
    elsif v_acks is not null then
        with acked as (
            update /*:*/outbox o
            set state = 2, epoch = v_epoch, done_at = v_now, done_by = coalesce(o.worker, v_workers[1]),
                leased_until = null, worker = null
            where o.seq = any(v_acks) and ((o.state = 0 and o.epoch = v_epoch - v_step and v_leased @> o.seq)
                                           or (o.state = 1 and o.epoch = v_epoch))
            returning o.seq, o.message_id
        )
        select array_agg(seq), array_agg(message_id) into v_acked, v_messages from acked;
    end if;
    v_over := v_acked;
    v_ends := array_fill(1::smallint, array[coalesce(cardinality(v_acked), 0)]);

    if cardinality(v_acked) = v_count then
        v_settled := '{0}';
    else
        with asked as materialized (
            select * from unnest($1, $2, $3, $4, $5, $6, $7, $9, $10)
                with ordinality as a (seq, epoch, outcome, delay, class, error, max_attempts, max_age, handled, n)
        ),
        rest as materialized (
            select * from asked a
            where (a.seq = any(v_acked) and a.epoch = v_epoch and a.outcome = 0) is distinct from true
        ),
        locked as materialized (
            select o.seq, o.message_id, o.state, o.attempts, o.failing_since, w.worker,
                   case when o.state = 1 or w.worker is not null then o.epoch + case o.state when 0 then v_step else 0 end end as held_at,
                   case when o.state = 2 then o.epoch end as done_at
            from /*:*/outbox o
            left join lateral (
                select l.worker from /*:*/outbox_lease l
                where o.state = 0 and v_leased @> o.seq and l.id = any(v_leases) and l.items @> o.seq
                limit 1
            ) w on true
            where o.seq = any(array(select r.seq from rest r))
            order by o.seq
            for update of o
        ),
        -- One time for all, after the locks, which may have been waited for.
        moment as materialized (
            select clock_timestamp() as now from (select count(*) from locked) l
        ),
        judged as materialized (
            select a.n, a.seq, a.epoch, l.message_id, l.worker, a.outcome, a.delay, a.class, a.error, a.handled,
                   l.attempts + case when a.outcome = 1 and a.class not in (2, 3) then 1 else 0 end as attempts,
                   case when a.outcome <> 1 then l.failing_since
                        when a.class in (2, 3) then coalesce(l.failing_since, v_now) end as failing_since,
                   a.outcome = 4 or (a.outcome = 1 and case
                       when a.class in (2, 3) then coalesce(
                           coalesce(l.failing_since, v_now) + a.max_age * interval '1 microsecond'
                           <= v_now, false)
                       else l.attempts + 1 >= a.max_attempts end) as dies,
                   case when l.seq is null then 2
                        when l.held_at = a.epoch then 0
                        when l.done_at = a.epoch and a.outcome = 0 then 0
                        else 1 end as settled,
                   coalesce(l.held_at = a.epoch, false) as held
            from rest a left join locked l on l.seq = a.seq
        ),
        changed as (
            update /*:*/outbox o
            set state = case when j.outcome = 0 then 2 when j.dies then 3 else 0 end,
                epoch = j.epoch,
                attempts = j.attempts,
                failing_since = j.failing_since,
                due_at = case when j.outcome in (1, 2) and not j.dies
                              then (select now from moment) + j.delay * interval '1 microsecond' else o.due_at end,
                done_at = case when j.outcome = 0 or j.dies then v_now end,
                done_by = case when j.outcome = 0 then coalesce(o.worker, j.worker) end,
                leased_until = null,
                worker = null,
                error_class = coalesce(j.class, o.error_class),
                last_error = coalesce(j.error, o.last_error),
                handled = coalesce(j.handled, o.handled)
            from judged j
            where o.seq = j.seq and j.held and (j.outcome <> 0 or $8)
        ),
        removed as (
            delete from /*:*/outbox o using judged j where o.seq = j.seq and j.held and j.outcome = 0 and not $8
        )
        select array_agg(coalesce(j.settled, 0)::smallint order by a.n),
               array_agg(j.seq) filter (where j.held),
               array_agg(j.message_id) filter (where j.ending is not null),
               array_agg(j.ending) filter (where j.ending is not null),
               (select now from moment)
        into v_settled, v_rest, v_rest_messages, v_rest_ends, v_now
        from asked a
        left join (select *, case when not held then null when outcome = 0 then 1 when dies then 2 when outcome = 2 then 0
                             end::smallint as ending
                   from judged) j on j.n = a.n;
        v_over := v_over || v_rest;
        v_messages := v_messages || v_rest_messages;
        v_ends := v_ends || v_rest_ends;
    end if;

    if v_leases is not null then
        perform /*:*/let_go(v_leases, (select coalesce(range_agg(int8range(s, s, '[]')), '{}') from unnest(v_over) s));
    end if;
    if v_releases then
        update /*:*/outbox_mark m set until = least(m.until, m.again_at)
        where m.low > (select min(o.due_at) from /*:*/outbox o where o.seq = any(v_rest) and o.state = 0);
    end if;
    return query select s, null::uuid, null::smallint, null::integer, null::integer, null::integer
                 from unnest(v_settled) with ordinality as a (s, n) order by n;
    if v_messages is not null then
        return query select null::smallint, c.* from /*:*/count_steps(v_messages, v_ends, v_now) c;
    end if;
end
$body$;

-- Acks that are all of one epoch, as nearly all are: runs of neighbours, from the first to the last of each, in their order. Answered
-- as settle_all does, in the order of seq.
create or replace function /*:*/ack_all(firsts bigint[], lasts bigint[], epoch integer, keep_done boolean)
returns table (
    settled smallint, join_id uuid, status smallint, expected_steps integer, completed_steps integer,
    failed_steps integer
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $body$
#variable_conflict use_column
declare
    v_asked int8multirange;
    v_count bigint;
    v_leases bigint[];
    v_workers text[];
    v_leased int8multirange;
    v_step integer;
    v_acked bigint[];
    v_messages uuid[];
    v_now timestamptz;
begin
    select range_agg(int8range(r.first, r.last, '[]')), sum(r.last - r.first + 1)
    into v_asked, v_count
    from unnest($1, $2) r (first, last);
    select l.leases, l.workers, l.leased, l.step into v_leases, v_workers, v_leased, v_step
    from /*:*/lock_leases(v_asked) l;
    v_now := clock_timestamp();

    if $4 then
        with acked as (
            update /*:*/outbox o
            set state = 2, epoch = $3, done_at = v_now, leased_until = null, worker = null,
                -- Of several workers' messages only the lease tells whose each is.
                done_by = coalesce(o.worker, case when cardinality(v_workers) = 1 then v_workers[1] else (
                    select l.worker from /*:*/outbox_lease l
                    where l.id = any(v_leases) and l.items @> o.seq limit 1) end)
            from unnest($1, $2) r (first, last)
            where o.seq between r.first and r.last
              and ((o.state = 0 and o.epoch = $3 - v_step and v_leased @> o.seq) or (o.state = 1 and o.epoch = $3))
            returning o.seq, o.message_id
        )
        select array_agg(a.seq), array_agg(a.message_id) into v_acked, v_messages from acked a;
    else
        with acked as (
            delete from /*:*/outbox o using unnest($1, $2) r (first, last)
            where o.seq between r.first and r.last
              and ((o.state = 0 and o.epoch = $3 - v_step and v_leased @> o.seq) or (o.state = 1 and o.epoch = $3))
            returning o.seq, o.message_id
        )
        select array_agg(a.seq), array_agg(a.message_id) into v_acked, v_messages from acked a;
    end if;

    if cardinality(v_acked) = v_count then
        perform /*:*/let_go(v_leases, v_asked);
        return query select 0::smallint, null::uuid, null::smallint, null::integer, null::integer, null::integer;
    else
        if v_leases is not null and v_acked is not null then
            perform /*:*/let_go(v_leases, (select range_agg(int8range(s, s, '[]')) from unnest(v_acked) s));
        end if;
        -- What was acked before, at this epoch, is so still.
        return query
        select case when a.seq is not null or (o.state = 2 and o.epoch = $3) then 0 when o.seq is null then 2 else 1 end::smallint,
               null::uuid, null::smallint, null::integer, null::integer, null::integer
        from unnest($1, $2) r (first, last)
        cross join lateral generate_series(r.first, r.last) s (seq)
        left join unnest(v_acked) a (seq) on a.seq = s.seq
        left join /*:*/outbox o on o.seq = s.seq
        order by s.seq;
    end if;
    if v_messages is not null then
        return query
        select null::smallint, c.*
        from /*:*/count_steps(v_messages, array_fill(1::smallint, array[cardinality(v_messages)]), v_now) c;
    end if;
end
$body$;

create or replace function /*:*/settle(
    items bigint[], epochs integer[], outcomes smallint[], delays_us bigint[], classes smallint[], errors text[],
    max_attempts integer[], keep_done boolean default true, max_ages_us bigint[] default null,
    handled text[] default null
)
returns table (settled smallint)
language sql volatile
set search_path = pg_catalog, pg_temp
set jit = off
as $body$
select unnest(case when cardinality(a.settled) = 1 then array_fill(a.settled[1], array[cardinality($1)]) else a.settled end)
from (select array_agg(s.settled) filter (where s.settled is not null) as settled
      from /*:*/settle_all($1, $2, $3, $4, $5, $6, $7, coalesce($8, true), $9, $10) s) a
$body$;

create or replace function /*:*/ack(item bigint, epoch integer, keep_done boolean default true)
returns smallint
language sql volatile
set search_path = pg_catalog, pg_temp
set jit = off
as $body$
select settled from /*:*/settle(
    array[item], array[epoch], '{0}', '{0}', array[null::smallint], array[null::text], '{2147483647}', keep_done)
$body$;

-- Null means the default. Without a delay: min(2^attempts s, 60 s), times a jitter of a half to one and a half.
-- Classes: 1 business, 2 infrastructure, 3 unroutable (these two cost no attempt), 4 permanent, 5 too large.
create or replace function /*:*/abandon(
    item bigint, epoch integer, error text default null, delay interval default null, class integer default 1,
    max_attempts integer default 10, max_age interval default null
)
returns smallint
language sql volatile
set search_path = pg_catalog, pg_temp
set jit = off
as $body$
select /*:*/require_delay('delay', coalesce(delay, interval '0'));
select /*:*/require_delay('max_age', coalesce(max_age, interval '0'));
select /*:*/require(coalesce(class, 1) between 1 and 5, 'class is ' || class, 'Give it 1 to 5.');
select /*:*/require(coalesce(max_attempts, 10) >= 1, 'max_attempts is ' || max_attempts, 'Give it at least 1.');
select settled from /*:*/settle(
    array[item], array[epoch], '{1}',
    array[(extract(epoch from coalesce(delay, (
        select least(power(2, least(o.attempts + 1, 10)), 60) * (0.5 + random()) * interval '1 second'
        from /*:*/outbox o where o.seq = item))) * 1000000)::bigint],
    array[coalesce(class, 1)::smallint],
    array[left(case when class in (2, 3) then '[INFRA] ' else '[BUSINESS] ' end || coalesce(error, ''), 1000)],
    array[coalesce(max_attempts, 10)], true, array[(extract(epoch from max_age) * 1000000)::bigint])
$body$;

create or replace function /*:*/defer(item bigint, epoch integer, delay interval)
returns smallint
language sql volatile
set search_path = pg_catalog, pg_temp
set jit = off
as $body$
select /*:*/require_delay('delay', delay);
select settled from /*:*/settle(
    array[item], array[epoch], '{2}', array[(extract(epoch from delay) * 1000000)::bigint], array[null::smallint],
    array[null::text], '{2147483647}')
$body$;

create or replace function /*:*/release(item bigint, epoch integer)
returns smallint
language sql volatile
set search_path = pg_catalog, pg_temp
set jit = off
as $body$
select settled from /*:*/settle(
    array[item], array[epoch], '{3}', '{0}', array[null::smallint], array[null::text], '{2147483647}')
$body$;

create or replace function /*:*/fail(item bigint, epoch integer, error text, class integer default 4)
returns smallint
language sql volatile
set search_path = pg_catalog, pg_temp
set jit = off
as $body$
select /*:*/require(coalesce(class, 4) between 1 and 5, 'class is ' || class, 'Give it 1 to 5.');
select settled from /*:*/settle(
    array[item], array[epoch], '{4}', '{0}', array[coalesce(class, 4)::smallint],
    array[left(case when class in (2, 3) then '[INFRA] ' else '[BUSINESS] ' end || coalesce(error, ''), 1000)],
    '{2147483647}')
$body$;
