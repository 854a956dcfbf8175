-- Takes messages that can start now. See ADR 0033.
--
-- A claim reads candidates and locks them, skipping those that other sessions have locked. Then it looks again, with a newer
-- snapshot, and drops those that another claim has leased meanwhile: that claim kept its locks until its lease could be seen.
-- So a message is never in two leases, claims wait for no other session, and a claim that idles in its transaction holds what it took.
--
-- Candidates come from two places. outbox_new holds what was published to be delivered at once, in the order of the
-- transactions that wrote it. Entries only ever leave it, so where a claim found nothing to take in front of a message, and every
-- transaction from before has ended, there will never be anything: the next claims begin there. outbox_due holds the rest,
-- in the order in which it becomes due.

-- Locks messages of outbox_new that can start, in these segments.
create or replace function /*:*/take_new(
    segments /*:*/outbox_segment[], leased int8multirange, max_messages bigint, topics text[], topic_prefixes text[],
    paused text[], paused_prefixes text[]
)
returns bigint[]
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $body$
declare
    v_now timestamptz := clock_timestamp();
begin
    return array(
        select c.seq
        from unnest($1) s
        cross join lateral (
            -- To the end of one or more priorities.
            select rest.seq from (
                select o.seq from /*:*/outbox o
                where s.from_born <> s.to_born and o.state = 0 and o.born is not null
                  and (o.priority, o.born, o.seq + 0) >= (s.first_priority, s.from_born, s.from_seq) and o.priority <= s.last_priority
                  and not $2 @> o.seq and o.due_at <= v_now
                  and (o.expires_at is null or o.expires_at > v_now)
                  and (($4 is null and $5 is null) or o.topic = any($4) or o.topic ^@ any($5))
                  and not (o.topic = any($6) or o.topic ^@ any($7))
                  and (o.key is null or (
                      select true from /*:*/outbox e
                      where e.key = o.key and e.seq < o.seq
                        and (e.state in (0, 1) or (e.state = 3 and e.order_policy <> 2 and e.error_class not in (6, 8)))
                      order by e.key desc, e.seq desc
                      limit 1) is null)
                order by o.priority, o.born, o.seq + 0
                limit $3
                for update of o skip locked
            ) rest
            union all
            -- A stretch of one transaction: plain bounds on the last column end the scan, which one on a row of columns would not.
            select stretch.seq from (
                select o.seq from /*:*/outbox o
                where s.from_born = s.to_born and o.state = 0 and o.born is not null
                  and o.priority = s.first_priority and o.born = s.from_born and o.seq + 0 between s.from_seq and s.to_seq
                  and not $2 @> o.seq and o.due_at <= v_now
                  and (o.expires_at is null or o.expires_at > v_now)
                  and (($4 is null and $5 is null) or o.topic = any($4) or o.topic ^@ any($5))
                  and not (o.topic = any($6) or o.topic ^@ any($7))
                  and (o.key is null or (
                      select true from /*:*/outbox e
                      where e.key = o.key and e.seq < o.seq
                        and (e.state in (0, 1) or (e.state = 3 and e.order_policy <> 2 and e.error_class not in (6, 8)))
                      order by e.key desc, e.seq desc
                      limit 1) is null)
                order by o.priority, o.born, o.seq + 0
                limit $3
                for update of o skip locked
            ) stretch
        ) c
        limit $3);
end
$body$;

-- Of the next messages that are due, of those that wait by their due time: which can start, and which cannot. None is locked.
create or replace function /*:*/look_due(
    slice bigint, after_due timestamptz, after_seq bigint, leased int8multirange, topics text[], topic_prefixes text[], paused text[],
    paused_prefixes text[], out free bigint[], out others bigint[], out last_due timestamptz, out last_seq bigint
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $body$
declare
    v_now timestamptz := clock_timestamp();
begin
    with due as materialized (
        select o.due_at, o.seq, o.topic, o.key, o.expires_at from /*:*/outbox o
        where o.state = 0 and o.born is null and o.lease_losses = 0 and o.due_at <= v_now and not $4 @> o.seq
          and (o.due_at, o.seq) > ($2, $3)
        order by o.due_at, o.seq
        limit $1
    ),
    judged as (
        select o.due_at, o.seq,
               (o.expires_at is null or o.expires_at > v_now)
               and (($5 is null and $6 is null) or o.topic = any($5) or o.topic ^@ any($6))
               and not (o.topic = any($7) or o.topic ^@ any($8))
               and (o.key is null or (
                   select true from /*:*/outbox e
                   where e.key = o.key and e.seq < o.seq
                     and (e.state in (0, 1) or (e.state = 3 and e.order_policy <> 2 and e.error_class not in (6, 8)))
                   order by e.key desc, e.seq desc
                   limit 1) is null) as is_free
        from due o
    )
    select coalesce(array_agg(j.seq) filter (where j.is_free), '{}'), coalesce(array_agg(j.seq) filter (where not j.is_free), '{}'),
           (array_agg(j.due_at))[count(*)::integer], (array_agg(j.seq))[count(*)::integer]
    into free, others, last_due, last_seq
    from judged j;
end
$body$;

-- Locks messages that wait by their due time and can start. Those that cannot are read to find them; if there are many, they are moved
-- to outbox_new, behind all that is there, so that they are not met by every claim.
create or replace function /*:*/take_due(
    max_messages bigint, leased int8multirange, topics text[], topic_prefixes text[], paused text[], paused_prefixes text[],
    is_own_transaction boolean
)
returns bigint[]
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $body$
declare
    c_many constant bigint := 100;     -- entries: fewer do not show in the cost of a claim
    c_most constant bigint := 10000;   -- entries that one claim moves
    v_slice bigint := greatest(2 * $1, c_many);
    v_due timestamptz := '-infinity';
    v_seq bigint := 0;
    v_found record;
    v_free bigint[] := '{}';
    v_others bigint[] := '{}';
begin
    loop
        v_found := /*:*/look_due(v_slice, v_due, v_seq, $2, $3, $4, $5, $6);
        v_free := v_free || v_found.free;
        if cardinality(v_others) < c_most then
            v_others := v_others || v_found.others;
        end if;
        exit when cardinality(v_free) >= $1 or cardinality(v_found.free) + cardinality(v_found.others) < v_slice;
        v_due := v_found.last_due;
        v_seq := v_found.last_seq;
        v_slice := least(4 * v_slice, c_most);
    end loop;
    if cardinality(v_others) >= c_many and $7 then
        update /*:*/outbox o set born = pg_current_xact_id()
        where o.seq = any(array(
            select d.seq from /*:*/outbox d
            where d.seq = any(v_others) and d.state = 0 and d.born is null
            order by d.seq
            for update skip locked));
    end if;
    if v_free = '{}' then
        return v_free;
    end if;
    return array(
        select o.seq from /*:*/outbox o
        where o.seq = any(v_free) and o.state = 0 and o.born is null and o.due_at <= clock_timestamp()
        order by o.priority, o.due_at, o.seq
        limit $1
        for update skip locked);
end
$body$;

-- The first suspect that is due and can start, and whether it has waited for longer than a lease; not locked. It is taken alone, so
-- that no neighbour is blamed if it kills this worker, too: after the clean ones, but before them once it has waited so long.
create or replace function /*:*/look_suspect(
    lease interval, leased int8multirange, topics text[], topic_prefixes text[], paused text[], paused_prefixes text[],
    out suspect bigint, out is_overdue boolean
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $body$
declare
    v_now timestamptz := clock_timestamp();
begin
    select o.seq, o.due_at < v_now - $1
    into suspect, is_overdue
    from /*:*/outbox o
    where o.state = 0 and o.lease_losses > 0 and o.due_at <= v_now and not $2 @> o.seq
      and (o.expires_at is null or o.expires_at > v_now)
      and (($3 is null and $4 is null) or o.topic = any($3) or o.topic ^@ any($4))
      and not (o.topic = any($5) or o.topic ^@ any($6))
      and (o.key is null or (
          select true from /*:*/outbox e
          where e.key = o.key and e.seq < o.seq
            and (e.state in (0, 1) or (e.state = 3 and e.order_policy <> 2 and e.error_class not in (6, 8)))
          order by e.key desc, e.seq desc
          limit 1) is null)
    order by o.priority, o.due_at, o.seq
    limit 1;
end
$body$;

-- Locks a suspect; none if another session has.
create or replace function /*:*/take_suspect(suspect bigint)
returns bigint[]
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $body$
begin
    return array(
        select o.seq from /*:*/outbox o
        where o.seq = $1 and o.state = 0 and o.lease_losses > 0 and o.due_at <= clock_timestamp()
        for update skip locked);
end
$body$;

-- Chooses messages that can start, and locks them, while some wait by their due time. Those and the ones of outbox_new are put in one
-- order; what is locked and then not chosen is free at the end of the transaction.
create or replace function /*:*/pick_with_due(
    segments /*:*/outbox_segment[], leased int8multirange, max_messages bigint, lease interval, topics text[],
    topic_prefixes text[], paused text[], paused_prefixes text[], is_own_transaction boolean
)
returns bigint[]
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $body$
declare
    v_suspect bigint;
    v_is_overdue boolean;
    v_due bigint[];
    v_picked bigint[];
begin
    select s.suspect, s.is_overdue into v_suspect, v_is_overdue from /*:*/look_suspect($4, $2, $5, $6, $7, $8) s;
    if v_is_overdue then
        v_picked := /*:*/take_suspect(v_suspect);
        if v_picked <> '{}' then
            return v_picked;
        end if;
    end if;
    v_due := /*:*/take_due($3, $2, $5, $6, $7, $8, $9);
    v_picked := /*:*/take_new($1, $2, $3, $5, $6, $7, $8);
    if v_due <> '{}' then
        v_picked := array(
            select o.seq from unnest(v_due || v_picked) c join /*:*/outbox o on o.seq = c
            order by o.priority, o.due_at, o.seq
            limit $3);
    end if;
    if v_picked = '{}' and v_suspect is not null then
        v_picked := /*:*/take_suspect(v_suspect);
    end if;
    return v_picked;
end
$body$;

-- Chooses and locks messages, and looks again: what was leased before its lock was had is dropped. Null if there was nothing.
--
-- In a transaction that the caller may leave open, locks of what was dropped would stay, and the settlements of its holders would wait
-- for them. There, a drop is an error, so that pick_in_savepoint can give the locks back.
create or replace function /*:*/pick_free(
    at /*:*/outbox_cursor, has_due boolean, max_messages bigint, lease interval, topics text[], topic_prefixes text[],
    paused text[], paused_prefixes text[], is_own_transaction boolean
)
returns int8multirange
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $body$
declare
    v_leased int8multirange := /*:*/leased_since(($1).lease_from, ($1).lease_late);
    v_picked bigint[];
    v_items int8multirange;
begin
    if $2 then
        v_picked := /*:*/pick_with_due(($1).segments, v_leased, $3, $4, $5, $6, $7, $8, $9);
    else
        v_picked := /*:*/take_new(($1).segments, v_leased, $3, $5, $6, $7, $8);
    end if;
    if v_picked = '{}' then
        return null;
    end if;
    v_items := /*:*/ranges_of(v_picked);
    v_leased := /*:*/leased_among(v_items, ($1).lease_from, ($1).lease_late);
    if not $9 and v_leased <> '{}' then
        raise exception using errcode = 'PH001';
    end if;
    return v_items - v_leased;
end
$body$;

-- The same in a transaction of the caller's: a savepoint gives back the locks of what was dropped.
create or replace function /*:*/pick_in_savepoint(
    at /*:*/outbox_cursor, has_due boolean, max_messages bigint, lease interval, topics text[], topic_prefixes text[],
    paused text[], paused_prefixes text[]
)
returns int8multirange
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $body$
begin
    loop
        begin
            return /*:*/pick_free($1, $2, $3, $4, $5, $6, $7, $8, false);
        exception when sqlstate 'PH001' then
            null;
        end;
    end loop;
end
$body$;

-- How many index entries this session has read that moving the cursor may save: of messages, and of leases that are over. Not those of as
-- many messages as living leases have that are as large as this claim: as many others will soon be there instead.
create or replace function /*:*/entries_read(max_messages bigint)
returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $body$
declare
    v_new constant oid := '/*:*/outbox_new'::regclass;
    v_lease constant oid := '/*:*/outbox_lease_born'::regclass;
begin
    return pg_stat_get_xact_tuples_returned(v_new) + pg_stat_get_xact_tuples_returned(v_lease)
           - (1 + $1) * pg_stat_get_xact_tuples_fetched(v_lease);
end
$body$;

-- Takes messages. Answers whole rows as they are stored, because building others would take most of the time: their epoch is the
-- token, which the caller has. They come in no special order.
--
-- What a transaction of its own has claimed need not be on disk when it is answered: a token that a crash forgets is never
-- given out again.
create or replace function /*:*/claim_all(
    worker text, max_messages bigint, lease interval, topics text[], topic_prefixes text[], token integer, is_own_transaction boolean
)
returns setof /*:*/outbox
language plpgsql volatile rows 50
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set plan_cache_mode = force_generic_plan
as $body$
#variable_conflict use_column
declare
    c_near constant bigint := 50;  -- entries: fewer do not show in the cost of a claim
    c_far constant bigint := 500;  -- entries: reading so many takes as long as moving the cursor
    v_index constant oid := '/*:*/outbox_lease_born'::regclass;
    v_now constant timestamptz := clock_timestamp();
    v_leases bigint;
    v_read bigint;
    v_has_turns boolean;
    v_has_due boolean;
    v_pauses text[];
    v_paused text[] := '{}';
    v_paused_prefixes text[] := '{}';
    v_filter text := '';
    v_cursor /*:*/outbox_cursor;
    v_items int8multirange;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        perform /*:*/require_read_committed();
    end if;
    if $7 then
        perform set_config('synchronous_commit', 'off', true);
    end if;
    select exists (select from /*:*/outbox_turn),
           exists (select from /*:*/outbox o where o.state = 0 and o.born is null and o.lease_losses = 0 and o.due_at <= v_now)
           or exists (select from /*:*/outbox o where o.state = 0 and o.lease_losses > 0 and o.due_at <= v_now),
           (select array_agg(p.topics order by p.topics) from /*:*/outbox_pause p)
    into v_has_turns, v_has_due, v_pauses;
    if v_has_turns then
        perform /*:*/take_turns();
        v_has_due := true;
    end if;
    if v_pauses is not null then
        v_paused := array(select p from unnest(v_pauses) p where p not like '%*');
        v_paused_prefixes := array(select left(p, -1) from unnest(v_pauses) p where p like '%*');
    end if;
    if $4 is not null or $5 is not null or v_pauses is not null then
        v_filter := md5(row($4, $5, v_paused, v_paused_prefixes)::text);
    end if;
    v_cursor := /*:*/cursor_for(v_filter);
    v_leases := pg_stat_get_xact_tuples_fetched(v_index);
    v_read := /*:*/entries_read($2);
    if $7 then
        -- Until something was got, or nothing is left: each time another claim has got something.
        loop
            v_items := /*:*/pick_free(v_cursor, v_has_due, $2, $3, $4, $5, v_paused, v_paused_prefixes, true);
            exit when v_items is null or not isempty(v_items);
        end loop;
    else
        v_items := /*:*/pick_in_savepoint(v_cursor, v_has_due, $2, $3, $4, $5, v_paused, v_paused_prefixes);
    end if;
    -- How far this claim has read is counted, not timed. The farther, and the fewer others claim, the likelier it moves the cursor, so that
    -- not all do it at once. Each lease is read twice or more.
    v_read := /*:*/entries_read($2) - v_read - 4 * $2 + /*:*/ended_segments(v_cursor.segments);
    v_leases := (pg_stat_get_xact_tuples_fetched(v_index) - v_leases) / 2;
    if v_read >= c_near and (v_items is null or random() * c_far * (1 + v_leases) < v_read) then
        perform /*:*/advance_cursor(v_cursor, v_items, $4, $5, v_paused, v_paused_prefixes, $7);
    end if;
    if v_items is null then
        return;
    end if;
    insert into /*:*/outbox_lease (token, leased_until, worker, items) values ($6, clock_timestamp() + $3, $1, v_items);
    return query
    select o.*
    from unnest(v_items) i
    cross join lateral (select * from /*:*/outbox o where o.seq >= lower(i) and o.seq < upper(i)) o;
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
    v_token integer := /*:*/new_token();
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
    return query
    select c.seq, v_token, c.message_id, c.topic, c.key, c.order_policy, c.payload, c.content_type, c.headers,
           c.correlation_id, c.aggregate_type, c.aggregate_id, c.tenant_id, c.priority, c.attempts, c.lease_losses,
           c.occurred_at, c.created_at, c.due_at, c.expires_at, c.failing_since, c.handled
    from /*:*/claim_all(worker, max_messages, lease, topics, topic_prefixes, v_token, false) c
    order by c.priority, c.due_at, c.seq;
end
$body$;
