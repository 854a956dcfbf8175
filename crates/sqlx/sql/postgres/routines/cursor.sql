-- Where claims begin to read outbox_new. See ADR 0033.
--
-- Entries only ever leave outbox_new. So once a claim found nothing that it may take in front of an entry, and every transaction
-- that could still write there has ended, there is nothing to find there again, and later claims begin behind it. A cursor
-- says so, in segments: one for the rest of each priority, and one for each stretch in front of it that may still have something
-- because its transaction is open, or because another session has locked it. Cursors are rows that are added and never changed, so
-- that an old snapshot makes no chain of versions; the newest counts. Moving one is never necessary, and right at any time.
--
-- There is a cursor for each filter of topics, because what one worker may not take, another may.

-- The cursor for this filter. Without one, that of all topics serves: what no worker can take, this one cannot. A cursor that came here
-- by a restored dump means nothing: it was inserted by another transaction than the one that wrote it.
create or replace function /*:*/cursor_for(filter text)
returns /*:*/outbox_cursor
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $body$
#variable_conflict use_column
declare
    v_cursor /*:*/outbox_cursor;
    c_end constant xid8 := '18446744073709551615';
    c_first constant bigint := -9223372036854775808;
begin
    select * into v_cursor from /*:*/outbox_cursor c
    where c.filter = $1 and c.xmin = c.born::xid
    order by c.filter, c.id desc limit 1;
    if v_cursor.id is null and $1 <> '' then
        v_cursor := /*:*/cursor_for('');
        v_cursor.id := null;
        v_cursor.filter := $1;
    end if;
    if v_cursor.next_xid is null then
        v_cursor := row(null, null, $1, '0', '0', '{}', array[
            row(-32768, -1, '0', c_first, c_end, 0), row(0, 0, '0', c_first, c_end, 0), row(1, 32767, '0', c_first, c_end, 0)
        ]::/*:*/outbox_segment[]);
    end if;
    return v_cursor;
end
$body$;

-- The newest cursor of any filter: where leases begin does not depend on the filter.
create or replace function /*:*/newest_cursor()
returns /*:*/outbox_cursor
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $body$
declare
    v_cursor /*:*/outbox_cursor;
begin
    select * into v_cursor from /*:*/outbox_cursor c where c.xmin = c.born::xid order by c.id desc limit 1;
    if v_cursor.next_xid is null then
        v_cursor := /*:*/cursor_for('');
    end if;
    return v_cursor;
end
$body$;

-- What the segments of transactions that have ended cost each claim, in entries: looking into one is as much as reading five.
create or replace function /*:*/ended_segments(segments /*:*/outbox_segment[])
returns bigint
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $body$
begin
    return 5 * (
        select count(*) from unnest($1) s
        where s.from_born = s.to_born and pg_visible_in_snapshot(s.from_born, pg_current_snapshot()));
end
$body$;

-- Gives a priority a segment of its own: only those can begin at a message. So many priorities have one; the rest are read whole.
create or replace function /*:*/split_segment(segments /*:*/outbox_segment[], priority smallint)
returns /*:*/outbox_segment[]
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $body$
declare
    c_most constant integer := 40;
    c_end constant xid8 := '18446744073709551615';
    c_first constant bigint := -9223372036854775808;
begin
    if cardinality($1) > c_most then
        return $1;
    end if;
    return array(
        select row(p.first_priority, p.last_priority, p.from_born, p.from_seq, p.to_born, p.to_seq)::/*:*/outbox_segment
        from unnest($1) s
        cross join lateral (
            select s.* where s.first_priority = s.last_priority or not $2 between s.first_priority and s.last_priority
            union all
            select v.first::smallint, v.last::smallint, '0'::xid8, c_first, c_end, 0
            from (values (s.first_priority::integer, $2::integer - 1), ($2, $2), ($2::integer + 1, s.last_priority)) v (first, last)
            where s.first_priority < s.last_priority and $2 between s.first_priority and s.last_priority and v.first <= v.last
        ) p
        order by p.first_priority, p.from_born, p.from_seq);
end
$body$;

-- Gives those priorities a segment of their own in which this claim took something, and those that come first in a segment of many.
create or replace function /*:*/split_segments(segments /*:*/outbox_segment[], taken int8multirange)
returns /*:*/outbox_segment[]
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $body$
declare
    v_priority smallint;
begin
    for v_priority in
        select distinct f.priority from (
            (select o.priority from unnest($2) i join /*:*/outbox o on o.seq = lower(i) limit 16)
            union all
            select h.priority
            from unnest($1) s
            cross join lateral (
                select o.priority from /*:*/outbox o
                where s.first_priority < s.last_priority and o.state = 0 and o.born is not null
                  and o.priority between s.first_priority and s.last_priority
                order by o.priority, o.born, o.seq + 0
                limit 1
            ) h
        ) f
    loop
        $1 := /*:*/split_segment($1, v_priority);
    end loop;
    return $1;
end
$body$;

-- Locks the messages that are first in their key, of keys that others wait for within this segment, and answers those keys and
-- messages. While they are locked they cannot end. The statement that ends one later looks for the next one (see free_next) with a
-- snapshot that has all that this one has. So those that wait behind them may be passed.
create or replace function /*:*/lock_heads(
    priority smallint, from_born xid8, from_seq bigint, leased int8multirange, out keys text[], out heads bigint[]
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $body$
declare
    c_most constant bigint := 20000;  -- entries that are looked at
begin
    with waiting as materialized (
        select distinct w.key
        from (
            select o.key, o.seq from /*:*/outbox o
            where o.state = 0 and o.born is not null and o.priority = $1 and (o.born, o.seq + 0) >= ($2, $3) and not $4 @> o.seq
            order by o.priority, o.born, o.seq + 0
            limit c_most
        ) w
        where w.key is not null and (
            select true from /*:*/outbox e
            where e.key = w.key and e.seq < w.seq
              and (e.state in (0, 1) or (e.state = 3 and e.order_policy <> 2 and e.error_class not in (6, 8)))
            order by e.key desc, e.seq desc
            limit 1) is not null
    ),
    first as materialized (
        select h.seq from waiting w
        cross join lateral (
            select e.seq from /*:*/outbox e
            where e.key = w.key
              and (e.state in (0, 1) or (e.state = 3 and e.order_policy <> 2 and e.error_class not in (6, 8)))
            order by e.key, e.seq
            limit 1
        ) h
    ),
    locked as (
        select e.key, e.seq from /*:*/outbox e
        where e.seq = any(array(select f.seq from first f))
          and (e.state in (0, 1) or (e.state = 3 and e.order_policy <> 2 and e.error_class not in (6, 8)))
        order by e.seq
        for share skip locked
    )
    select coalesce(array_agg(l.key), '{}'), coalesce(array_agg(l.seq), '{}') into keys, heads from locked l;
end
$body$;

-- The first message of a segment that a claim with this filter may have to take one day: not leased (what comes back from a lease
-- does not come back to this place), not of other topics or paused, not behind another of its key that is locked. Whether it
-- waits for another of its key; and stretches in front of it that other sessions have locked, if those may be left behind.
create or replace function /*:*/first_open(
    segment /*:*/outbox_segment, leased int8multirange, topics text[], topic_prefixes text[], paused text[], paused_prefixes text[],
    keys text[], heads bigint[], leaves_locked boolean, out born xid8, out seq bigint, out waits boolean,
    out locked /*:*/outbox_segment[]
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $body$
#variable_conflict use_column
declare
    c_most constant integer := 16;   -- stretches
    c_near constant integer := 100;  -- Entries of one stretch are at most so far from each other.
    v_row record;
    v_last /*:*/outbox_segment;
begin
    locked := '{}';
    for v_row in
        select * from (
            select o.born, o.seq, o.key from /*:*/outbox o
            where ($1).from_born <> ($1).to_born and o.state = 0 and o.born is not null and o.priority = ($1).first_priority
              and (o.born, o.seq + 0) >= (($1).from_born, ($1).from_seq)
              and not $2 @> o.seq
              and (($3 is null and $4 is null) or o.topic = any($3) or o.topic ^@ any($4))
              and not (o.topic = any($5) or o.topic ^@ any($6))
              and (o.key is null or $7 = '{}' or o.key not in (select unnest($7)) or o.seq in (select unnest($8)))
            order by o.priority, o.born, o.seq + 0
        ) rest
        union all
        select * from (
            select o.born, o.seq, o.key from /*:*/outbox o
            where ($1).from_born = ($1).to_born and o.state = 0 and o.born is not null and o.priority = ($1).first_priority
              and o.born = ($1).from_born and o.seq + 0 between ($1).from_seq and ($1).to_seq
              and not $2 @> o.seq
              and (($3 is null and $4 is null) or o.topic = any($3) or o.topic ^@ any($4))
              and not (o.topic = any($5) or o.topic ^@ any($6))
              and (o.key is null or $7 = '{}' or o.key not in (select unnest($7)) or o.seq in (select unnest($8)))
            order by o.priority, o.born, o.seq + 0
        ) stretch
    loop
        born := v_row.born;
        seq := v_row.seq;
        exit when not leaves_locked;
        perform from /*:*/outbox o where o.seq = v_row.seq for key share skip locked;
        exit when found;
        v_last := locked[cardinality(locked)];
        if v_last.from_born = born and seq - v_last.to_seq <= c_near then
            locked[cardinality(locked)].to_seq := seq;
        else
            exit when cardinality(locked) = c_most;
            locked := locked || row(($1).first_priority, ($1).first_priority, born, seq, born, seq)::/*:*/outbox_segment;
        end if;
        born := null;
        seq := null;
    end loop;
    waits := seq is not null and (
        select true from /*:*/outbox e
        where e.key = v_row.key and e.seq < v_row.seq
          and (e.state in (0, 1) or (e.state = 3 and e.order_policy <> 2 and e.error_class not in (6, 8)))
        order by e.key desc, e.seq desc
        limit 1) is not null;
end
$body$;

-- What becomes of one segment. One transaction's stays until it has ended and nothing is left. The rest of a priority begins at
-- the first open message, or where a transaction stops it that began after the last time; those that were open then, too, get
-- a segment each.
create or replace function /*:*/move_segment(
    segment /*:*/outbox_segment, writing xid8[], stop xid8, leased int8multirange, topics text[], topic_prefixes text[],
    paused text[], paused_prefixes text[], is_own_transaction boolean
)
returns /*:*/outbox_segment[]
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $body$
declare
    c_end constant xid8 := '18446744073709551615';
    c_first constant bigint := -9223372036854775808;
    c_last constant bigint := 9223372036854775807;
    v_priority constant smallint := ($1).first_priority;
    v_is_rest constant boolean := ($1).to_born = c_end;
    v_first record;
    v_locked /*:*/outbox_segment[];
    v_keys text[] := '{}';
    v_heads bigint[] := '{}';
begin
    if v_priority < ($1).last_priority or (not v_is_rest and ($1).from_born = any($2)) then
        return array[$1];
    end if;
    v_first := /*:*/first_open($1, $4, $5, $6, $7, $8, '{}', '{}', v_is_rest and $9);
    v_locked := v_first.locked;
    if v_is_rest and v_first.waits and $9 then
        select h.keys, h.heads into v_keys, v_heads from /*:*/lock_heads(v_priority, v_first.born, v_first.seq, $4) h;
        v_first := /*:*/first_open(row(v_priority, v_priority, v_first.born, v_first.seq, c_end, 0)::/*:*/outbox_segment,
                                   $4, $5, $6, $7, $8, v_keys, v_heads, false);
    end if;
    if not v_is_rest then
        return case when v_first.seq is null then '{}'
                    else array[row(v_priority, v_priority, ($1).from_born, v_first.seq, ($1).to_born, ($1).to_seq)] end;
    end if;
    if v_first.born is null or v_first.born >= $3 then
        v_first.born := $3;
        v_first.seq := c_first;
    elsif v_first.born = any($2) then
        -- This claim's own: it may still move messages there.
        v_first.seq := c_first;
    end if;
    return (select coalesce(array_agg(l order by l.from_born, l.from_seq), '{}') from unnest(v_locked) l where l.from_born < $3)
           || array(select row(v_priority, v_priority, x, c_first, x, c_last)::/*:*/outbox_segment
                    from unnest($2) x where x >= ($1).from_born and x < v_first.born order by x)
           || row(v_priority, v_priority, v_first.born, v_first.seq, c_end, 0)::/*:*/outbox_segment;
end
$body$;

-- Writes a new cursor, if that leads anywhere.
create or replace function /*:*/advance_cursor(
    old /*:*/outbox_cursor, taken int8multirange, topics text[], topic_prefixes text[], paused text[], paused_prefixes text[],
    is_own_transaction boolean
)
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $body$
#variable_conflict use_column
declare
    c_most constant integer := 16;     -- open transactions with a segment of their own
    c_unused constant integer := 1000; -- newer cursors, of any filter, after which one is deleted
    v_old constant /*:*/outbox_segment[] := /*:*/split_segments(($1).segments, $2);
    v_next_xid xid8;
    v_writing xid8[];
    v_stop xid8;
    v_leased int8multirange;
    v_segment /*:*/outbox_segment;
    v_new /*:*/outbox_segment[] := '{}';
    v_id bigint;
    v_is_valid boolean;
begin
    -- One snapshot for what is being written and what is leased; what is looked at later is newer.
    select pg_snapshot_xmax(s), array(select x from pg_snapshot_xip(s) x union select pg_current_xact_id() order by 1),
           /*:*/leased_since(($1).lease_from, ($1).lease_late)
    into v_next_xid, v_writing, v_leased
    from pg_current_snapshot() s;
    v_stop := least(v_next_xid, (select min(w.x) from unnest(v_writing) with ordinality w (x, i)
                                 where w.x >= ($1).next_xid or w.i > c_most));
    foreach v_segment in array v_old loop
        v_new := v_new || /*:*/move_segment(v_segment, v_writing, v_stop, v_leased, $3, $4, $5, $6, $7);
    end loop;
    if v_new = ($1).segments then
        return;
    end if;
    insert into /*:*/outbox_cursor as c (filter, next_xid, lease_from, lease_late, segments)
    values (($1).filter, v_next_xid,
            least((select l.born from /*:*/outbox_lease l where l.born >= ($1).lease_from order by l.born limit 1), v_stop),
            array(select distinct x from unnest(($1).lease_late || v_writing) x
                  where x < v_stop and (x = any(v_writing) or exists (select from /*:*/outbox_lease l where l.born = x))),
            v_new)
    returning c.id, c.xmin = c.born::xid into v_id, v_is_valid;
    if not v_is_valid then
        -- In a subtransaction of the caller's.
        delete from /*:*/outbox_cursor c where c.id = v_id;
        return;
    end if;
    delete from /*:*/outbox_cursor c
    where c.id = any(array(select o.id from /*:*/outbox_cursor o
                           where o.id = ($1).id or o.id < v_id - c_unused or o.xmin <> o.born::xid
                           limit 10 for update skip locked));
end
$body$;
