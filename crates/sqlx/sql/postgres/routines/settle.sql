-- Settling: one function for a batch of any outcomes, and one per verb. Each answers 0 applied, 1 lost, 2 gone; settle_free also 3, if
-- another session has locked the message.
-- A max age is for how long a message may fail without a break for reasons that cost no attempt; null: for ever.
-- handled are the names of the handlers that are done with a message, one a line; null leaves them as they are.
-- If all are acks and were applied, that is answered once for all.
--
-- A message is held under a token if it is in a lease with that token and its row has another one, or if it was born leased and
-- its row has this one. What counts are leases that are read after the message's row was locked: while a settlement waits for the row,
-- its lease may run out, and the next holder may come and go. Messages are locked in the order of seq, and leases after them, in the
-- order of their ids.
--
-- Joins are counted by statements of their own, each with a snapshot that is newer than the locks of the messages: in one
-- statement with them, a step that was attached while its message's lock was waited for would not be seen. The same holds for the
-- messages that wait for their key. Joins that end by it follow the answers, with no settled of their own; settle leaves them out.

-- What is in the leases with these tokens, a row for each range of seqs.
create or replace function /*:*/held(tokens integer[])
returns table (token integer, worker text, first bigint, beyond bigint)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $body$
begin
    return query
    select l.token, l.worker, lower(i), upper(i)
    from /*:*/outbox_lease l cross join lateral unnest(l.items) i
    where l.token = any(tokens);
end
$body$;

-- Acks of messages whose handlers are not written down, as nearly all are: runs of neighbours with one token each, from the first to
-- the last. The messages that were acked.
create or replace function /*:*/ack_runs(
    firsts bigint[], lasts bigint[], tokens integer[], keep_done boolean, now timestamptz,
    out acked int8multirange, out messages uuid[], out keys text[], out keyed bigint[], out count bigint
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $body$
#variable_conflict use_column
declare
    v_firsts bigint[];
    v_lasts bigint[];
    v_tokens integer[];
    v_workers text[];
    v_seqs bigint[];
begin
    -- What is held by a lease, and what may be held by its row alone (the worker is null there).
    with run as materialized (
        select r.first, r.last, r.token from unnest($1, $2, $3) r (first, last, token)
    ),
    held as materialized (
        select greatest(r.first, lower(i)) as first, least(r.last, upper(i) - 1) as last, r.token, l.worker,
               lower(i) <= r.first and upper(i) > r.last as is_whole
        from run r join /*:*/outbox_lease l on l.token = r.token cross join lateral unnest(l.items) i
        where lower(i) <= r.last and upper(i) > r.first
    ),
    run_or_held as (
        select h.first, h.last, h.token, h.worker from held h
        union all
        select r.first, r.last, r.token, null from run r
        where not exists (select from held h where h.is_whole and h.token = r.token and h.first = r.first and h.last = r.last)
    )
    select array_agg(u.first), array_agg(u.last), array_agg(u.token), array_agg(u.worker)
    into v_firsts, v_lasts, v_tokens, v_workers
    from run_or_held u;

    if $4 then
        with acked as (
            update /*:*/outbox o
            set state = 2, epoch = r.token, done_at = $5, done_by = coalesce(o.worker, r.worker), leased_until = null, worker = null
            from unnest(v_firsts, v_lasts, v_tokens, v_workers) r (first, last, token, worker)
            where o.seq between r.first and r.last
              and ((o.state = 0 and o.epoch <> r.token and r.worker is not null) or (o.state = 1 and o.epoch = r.token))
            returning o.seq, o.message_id, o.key
        )
        select array_agg(a.seq), array_agg(a.message_id), array_agg(a.key) filter (where a.key is not null),
               array_agg(a.seq) filter (where a.key is not null)
        into v_seqs, messages, keys, keyed
        from acked a;
    else
        with acked as (
            delete from /*:*/outbox o using unnest(v_firsts, v_lasts, v_tokens, v_workers) r (first, last, token, worker)
            where o.seq between r.first and r.last
              and ((o.state = 0 and o.epoch <> r.token and r.worker is not null) or (o.state = 1 and o.epoch = r.token))
            returning o.seq, o.message_id, o.key
        )
        select array_agg(a.seq), array_agg(a.message_id), array_agg(a.key) filter (where a.key is not null),
               array_agg(a.seq) filter (where a.key is not null)
        into v_seqs, messages, keys, keyed
        from acked a;
    end if;
    count := coalesce(cardinality(v_seqs), 0);
    acked := /*:*/ranges_of(v_seqs);
    -- A lease that is gone by now was lost while a row was waited for, and others may have held its messages since.
    if not acked * (select range_agg(int8range(r.first, r.last, '[]')) from unnest(v_firsts, v_lasts, v_workers) r (first, last, worker)
                    where r.worker is not null)
           <@ (select coalesce(range_agg(i), '{}') from /*:*/outbox_lease l cross join lateral unnest(l.items) i
               where l.token = any($3)) then
        raise exception 'a lease ran out while its messages were being acked'
            using errcode = 'serialization_failure', hint = 'Ack again, in a new transaction.';
    end if;
    if keys is not null then
        perform /*:*/free_next(keys, keyed);
    end if;
    if acked is not null then
        perform /*:*/end_leases($3, acked);
    end if;
end
$body$;

-- Acks, answered as settle_all does, in the order of seq.
create or replace function /*:*/ack_all(firsts bigint[], lasts bigint[], tokens integer[], keep_done boolean)
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
    v_now timestamptz := clock_timestamp();
    v_acked int8multirange;
    v_messages uuid[];
    v_count bigint;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        perform /*:*/require_read_committed();
    end if;
    -- The library asks settle_free after that.
    perform set_config('lock_timeout', '2s', true);
    select a.acked, a.messages, a.count into v_acked, v_messages, v_count from /*:*/ack_runs($1, $2, $3, $4, v_now) a;
    if v_count = (select sum(r.last - r.first + 1) from unnest($1, $2) r (first, last)) then
        return query select 0::smallint, null::uuid, null::smallint, null::integer, null::integer, null::integer;
    else
        -- What was acked before, with this token, is so still.
        return query
        select case when v_acked @> s.seq or (o.state = 2 and o.epoch = r.token) then 0 when o.seq is null then 2 else 1 end::smallint,
               null::uuid, null::smallint, null::integer, null::integer, null::integer
        from unnest($1, $2, $3) with ordinality r (first, last, token, n)
        cross join lateral generate_series(r.first, r.last) s (seq)
        left join /*:*/outbox o on o.seq = s.seq
        order by r.n, s.seq;
    end if;
    -- A database without joins pays for this look alone: the newest one, because pruning leaves dead entries of the oldest.
    perform from /*:*/outbox_join j order by j.join_id desc limit 1;
    if found and v_messages is not null then
        return query
        select null::smallint, c.*
        from /*:*/count_steps(v_messages, array_fill(1::smallint, array[cardinality(v_messages)]), v_now) c;
    end if;
end
$body$;

-- What an outcome makes of each message that the caller has locked: see settle_all for the parameters. Those that are not held, or not
-- locked, are judged only. It is stable, so it sees what its caller's statement sees.
create or replace function /*:*/judge(
    items bigint[], epochs integer[], outcomes smallint[], delays_us bigint[], classes smallint[], errors text[],
    max_attempts integer[], max_ages_us bigint[], handled text[], locked bigint[]
)
returns table (
    n bigint, seq bigint, epoch integer, message_id uuid, key text, worker text, outcome smallint, delay_us bigint, class smallint,
    error text, done_handlers text, attempts integer, failing_since timestamptz, dies boolean, settled smallint, is_held boolean,
    order_policy smallint
)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $body$
#variable_conflict use_column
declare
    v_now constant timestamptz := clock_timestamp();
begin
    return query
    with asked as materialized (
        select * from unnest($1, $2, $3, $4, $5, $6, $7, $8, $9)
            with ordinality as a (seq, epoch, outcome, delay, class, error, max_attempts, max_age, handled, n)
    ),
    locked_rows as materialized (
        select o.seq, o.message_id, o.key, o.order_policy, o.state, o.epoch, o.attempts, o.failing_since
        from /*:*/outbox o
        where o.seq = any($10)
    ),
    found as materialized (
        select a.*, l.seq is not null as is_there, l.message_id, l.key, l.order_policy, l.state, l.attempts, h.worker,
               coalesce((l.state = 1 and l.epoch = a.epoch)
                        or (l.state = 0 and l.epoch <> a.epoch and h.worker is not null), false) as is_held,
               coalesce(l.state = 2 and l.epoch = a.epoch and a.outcome = 0, false) as was_acked,
               l.failing_since,
               case when a.outcome = 1 and a.class in (2, 3) then coalesce(l.failing_since, v_now) end as fails_since
        from asked a
        left join locked_rows l on l.seq = a.seq
        left join lateral (
            select h.worker from /*:*/held($2) h where h.token = a.epoch and h.first <= a.seq and h.beyond > a.seq limit 1
        ) h on true
    )
    select f.n, f.seq, f.epoch, f.message_id, f.key, f.worker, f.outcome, f.delay, f.class, f.error, f.handled,
           least(f.attempts, 2147483646) + case when f.outcome = 1 and f.class not in (2, 3) then 1 else 0 end,
           case when f.outcome = 1 then f.fails_since else f.failing_since end,
           f.outcome = 4 or (f.outcome = 1 and case
               when f.class in (2, 3) then coalesce(f.fails_since + f.max_age * interval '1 microsecond' <= v_now, false)
               else least(f.attempts, 2147483646) + 1 >= f.max_attempts end),
           case when f.is_held or f.was_acked then 0 when f.is_there then 1
                when exists (select from /*:*/outbox o where o.seq = f.seq) then 3 else 2 end::smallint,
           f.is_held, f.order_policy
    from found f;
end
$body$;

-- Settles messages that the caller has locked by a statement of its own: what is judged here, with a newer snapshot, cannot change any
-- more.
create or replace function /*:*/settle_locked(
    items bigint[], epochs integer[], outcomes smallint[], delays_us bigint[], classes smallint[], errors text[],
    max_attempts integer[], keep_done boolean, max_ages_us bigint[], handled text[], locked bigint[]
)
returns table (
    settled smallint, join_id uuid, status smallint, expected_steps integer, completed_steps integer,
    failed_steps integer
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $body$
#variable_conflict use_column
declare
    v_now constant timestamptz := clock_timestamp();
    v_settled smallint[];
    v_over bigint[];
    v_ended text[];
    v_ended_seqs bigint[];
    v_messages uuid[];
    v_ends smallint[];
begin
    with judged as materialized (
        select * from /*:*/judge($1, $2, $3, $4, $5, $6, $7, $9, $10, $11)
    ),
    changed as (
        update /*:*/outbox o
        set state = case when j.outcome = 0 then 2 when j.dies then 3 else 0 end,
            epoch = j.epoch,
            born = null,
            attempts = j.attempts,
            failing_since = j.failing_since,
            due_at = case when j.outcome in (1, 2) and not j.dies
                          then v_now + j.delay_us * interval '1 microsecond' else o.due_at end,
            done_at = case when j.outcome = 0 or j.dies then v_now end,
            done_by = case when j.outcome = 0 then coalesce(o.worker, j.worker) end,
            leased_until = null,
            worker = null,
            error_class = coalesce(j.class, o.error_class),
            last_error = coalesce(j.error, o.last_error),
            handled = coalesce(j.done_handlers, o.handled)
        from judged j
        where o.seq = j.seq and j.is_held and (j.outcome <> 0 or $8)
    ),
    removed as (
        delete from /*:*/outbox o using judged j where o.seq = j.seq and j.is_held and j.outcome = 0 and not $8
    )
    select array_agg(j.settled order by j.n),
           array_agg(j.seq) filter (where j.is_held),
           array_agg(j.key) filter (where j.frees_key),
           array_agg(j.seq) filter (where j.frees_key),
           array_agg(j.message_id) filter (where j.ending is not null),
           array_agg(j.ending) filter (where j.ending is not null)
    into v_settled, v_over, v_ended, v_ended_seqs, v_messages, v_ends
    from (select *, is_held and key is not null and (outcome = 0 or (dies and order_policy = 2)) as frees_key,
                 case when not is_held then null when outcome = 0 then 1 when dies then 2 when outcome = 2 then 0
                 end::smallint as ending
          from judged) j;

    if v_ended is not null then
        perform /*:*/free_next(v_ended, v_ended_seqs);
    end if;
    if v_over is not null then
        perform /*:*/let_go($2, v_over);
    end if;
    if 0 = all(v_settled) and 0 = all($3) then
        v_settled := '{0}';
    end if;
    return query select s, null::uuid, null::smallint, null::integer, null::integer, null::integer
                 from unnest(v_settled) with ordinality as a (s, n) order by n;
    if v_messages is not null then
        return query select null::smallint, c.* from /*:*/count_steps(v_messages, v_ends, v_now) c;
    end if;
end
$body$;

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
    v_locked bigint[];
begin
    perform /*:*/require_read_committed();
    v_locked := array(select o.seq from /*:*/outbox o where o.seq = any($1) order by o.seq for update);
    return query select * from /*:*/settle_locked($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, v_locked);
end
$body$;

-- Locks those of these messages that can be settled without waiting: neither they nor a join of theirs is locked by another session.
create or replace function /*:*/lock_free(items bigint[])
returns bigint[]
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $body$
declare
    v_locked bigint[] := array(
        select o.seq from /*:*/outbox o where o.seq = any($1) order by o.seq for update skip locked);
    v_steps bigint[];
    v_joins uuid[];
    v_free uuid[];
begin
    select array_agg(o.seq), array_agg(j.join_id) into v_steps, v_joins
    from /*:*/outbox o
    cross join lateral (
        select m.join_id from /*:*/outbox_join_member m where m.message_id = o.message_id and m.status = 0
        union all
        select w.join_id from /*:*/outbox_join_wait w where w.message_id = o.message_id and w.continued_at is null
    ) j
    where o.seq = any(v_locked);
    if v_steps is null then
        return v_locked;
    end if;
    v_free := array(
        select j.join_id from /*:*/outbox_join j where j.join_id = any(v_joins)
        order by j.join_id
        for no key update skip locked);
    return array(
        select s from unnest(v_locked) s
        except
        select w.seq from unnest(v_steps, v_joins) w (seq, join_id) where w.join_id <> all(v_free));
end
$body$;

-- The same as settle_all for the library, which waits for two seconds at most; or not at all, and settles what no other session has
-- locked.
create or replace function /*:*/settle_free(
    passes_locked boolean, items bigint[], epochs integer[], outcomes smallint[], delays_us bigint[], classes smallint[],
    errors text[], max_attempts integer[], keep_done boolean, max_ages_us bigint[], handled text[]
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
    v_locked bigint[];
begin
    perform /*:*/require_read_committed();
    perform set_config('lock_timeout', '2s', true);
    if $1 then
        v_locked := /*:*/lock_free($2);
    else
        v_locked := array(select o.seq from /*:*/outbox o where o.seq = any($2) order by o.seq for update);
    end if;
    return query select * from /*:*/settle_locked($2, $3, $4, $5, $6, $7, $8, $9, $10, $11, v_locked);
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
