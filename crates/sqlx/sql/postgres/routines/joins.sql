-- Joins. What services call that start them runs with the rights of the tables' owner, as in publish.sql; what workers call, with
-- theirs. Messages are locked before joins, and joins in the order of their ids, by everybody; so nobody waits in a circle,
-- and whoever attaches a message and whoever ends it see each other's change.

-- Makes the messages due that wait for these joins, as far as they are over. One that somebody holds is left to its holder:
-- who defers it looks at the join again.
create or replace function /*:*/wake_waits(joins uuid[], now timestamptz)
returns void
language sql volatile
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
as $body$
update /*:*/outbox o set due_at = now
where o.seq = any(array(
    select q.seq
    from /*:*/outbox_join_wait w
    join /*:*/outbox_join j on j.join_id = w.join_id
    join /*:*/outbox q on q.message_id = w.message_id
    where w.join_id = any(joins) and w.continued_at is null and j.status <> 0
      and q.state = 0 and q.due_at > now and q.due_at <> 'infinity'
    order by q.seq
    for update of q skip locked
))
$body$;

create or replace function /*:*/wake_waits(joins uuid[])
returns void
language sql volatile
set search_path = pg_catalog, pg_temp
set jit = off
as $body$
select /*:*/wake_waits(joins, clock_timestamp())
$body$;

-- Counts what became of messages in every join that they are pending steps of, and answers the joins that end by it.
-- ends: 1 completed, 2 failed, 0 deferred, which matters only to messages that wait for a join. now: the time of the whole change,
-- so that all that becomes due by it is ordered by seq.
create or replace function /*:*/count_steps(messages uuid[], ends smallint[], now timestamptz)
returns table (
    join_id uuid, status smallint, expected_steps integer, completed_steps integer, failed_steps integer
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
as $body$
#variable_conflict use_column
declare
    v_deferred uuid[];
    v_ended uuid[];
begin
    -- Who has no joins pays for this look alone. The newest one first: of the oldest, pruning leaves many traces in the index.
    perform 1 from /*:*/outbox_join j order by j.join_id desc limit 1;
    if not found then
        return;
    end if;

    select array_agg(e.message_id) into v_deferred from unnest(messages, ends) as e (message_id, ending) where e.ending = 0;
    perform 1 from /*:*/outbox_join j
    where j.join_id = any(array(
        select m.join_id from /*:*/outbox_join_member m where m.message_id = any(messages) and m.status = 0
        union
        select w.join_id from /*:*/outbox_join_wait w where w.message_id = any(v_deferred) and w.continued_at is null))
    order by j.join_id
    for no key update;
    if not found then
        return;
    end if;

    with counts as (
        select m.join_id, count(*) filter (where e.ending = 1)::integer as completed,
               count(*) filter (where e.ending = 2)::integer as failed
        from unnest(messages, ends) as e (message_id, ending)
        join /*:*/outbox_join_member m on m.message_id = e.message_id
        where m.status = 0 and e.ending <> 0
        group by m.join_id
    ),
    counted as (
        update /*:*/outbox_join j
        set completed_steps = j.completed_steps + c.completed,
            failed_steps = j.failed_steps + c.failed,
            updated_at = now,
            ended_at = case when j.completed_steps + j.failed_steps + c.completed + c.failed >= j.expected_steps
                            then now end,
            status = case when j.completed_steps + j.failed_steps + c.completed + c.failed < j.expected_steps then 0
                          when j.failed_steps + c.failed > 0 then 2
                          else 1 end
        from counts c
        where j.join_id = c.join_id and j.status = 0
        returning j.join_id, j.status
    )
    select array_agg(c.join_id order by c.join_id) into v_ended from counted c where c.status <> 0;

    -- Only a cancelled or expired join has pending steps left: those are late.
    update /*:*/outbox_join_member m
    set status = e.ending + case when j.status in (3, 4) then 2 else 0 end, updated_at = now
    from unnest(messages, ends) as e (message_id, ending), /*:*/outbox_join j
    where m.message_id = e.message_id and m.status = 0 and e.ending <> 0 and j.join_id = m.join_id;

    if v_ended is not null then
        perform /*:*/wake_waits(v_ended, now);
        return query select j.join_id, j.status, j.expected_steps, j.completed_steps, j.failed_steps
                     from /*:*/outbox_join j where j.join_id = any(v_ended) order by j.join_id;
    end if;
    -- What waits for a join that is over by now was deferred too late: its join's end could not make it due.
    if v_deferred is not null then
        update /*:*/outbox o set due_at = now
        where o.message_id = any(array(
            select w.message_id from /*:*/outbox_join_wait w join /*:*/outbox_join j on j.join_id = w.join_id
            where w.message_id = any(v_deferred) and w.continued_at is null and j.status <> 0));
    end if;
end
$body$;

create or replace function /*:*/count_steps(messages uuid[], ends smallint[])
returns table (
    join_id uuid, status smallint, expected_steps integer, completed_steps integer, failed_steps integer
)
language sql volatile
set search_path = pg_catalog, pg_temp
set jit = off
as $body$
select * from /*:*/count_steps(messages, ends, clock_timestamp())
$body$;

-- Takes back that messages had failed, wherever that is still open: what was counted in a join that is over stays.
create or replace function /*:*/uncount_steps(messages uuid[])
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
as $body$
begin
    perform 1 from /*:*/outbox_join j
    where j.join_id = any(array(
        select m.join_id from /*:*/outbox_join_member m where m.message_id = any(messages) and m.status in (2, 4)))
    order by j.join_id
    for no key update;
    if not found then
        return;
    end if;

    update /*:*/outbox_join j
    set failed_steps = j.failed_steps - c.failed, updated_at = statement_timestamp()
    from (select m.join_id, count(*)::integer as failed from /*:*/outbox_join_member m
          where m.message_id = any(messages) and m.status = 2
          group by m.join_id) c
    where j.join_id = c.join_id and j.status = 0;

    update /*:*/outbox_join_member m
    set status = 0, updated_at = statement_timestamp()
    from /*:*/outbox_join j
    where m.message_id = any(messages) and j.join_id = m.join_id
      and (m.status = 4 or (m.status = 2 and j.status = 0));
end
$body$;

-- Ends pending joins whose deadline has passed: this one, or the first so many; of those, what others hold is left for later.
create or replace function /*:*/expire_joins(max_joins bigint, only_join uuid)
returns table (
    join_id uuid, status smallint, expected_steps integer, completed_steps integer, failed_steps integer
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
as $body$
#variable_conflict use_column
declare
    v_joins uuid[];
    v_now timestamptz := clock_timestamp();
begin
    if only_join is not null then
        select array_agg(o.join_id) into v_joins from (
            select j.join_id from /*:*/outbox_join j
            where j.join_id = only_join and j.status = 0 and j.expires_at <= v_now
            for no key update
        ) o;
    else
        select array_agg(o.join_id) into v_joins from (
            select j.join_id from /*:*/outbox_join j
            where j.status = 0 and j.expires_at <= v_now
            order by j.expires_at, j.join_id
            limit max_joins
            for no key update skip locked
        ) o;
    end if;
    if v_joins is null then
        return;
    end if;
    return query
    update /*:*/outbox_join j
    set status = 4, updated_at = v_now, ended_at = v_now
    where j.join_id = any(v_joins)
    returning j.join_id, j.status, j.expected_steps, j.completed_steps, j.failed_steps;
    perform /*:*/wake_waits(v_joins, v_now);
end
$body$;

-- What a call about one join answers. Codes: 0 done, 1 there is no such join, 2 there is no such message, or it is not a step
-- of the join, 3 the join is over, 4 more steps than the join expects. moved: how many steps were attached or counted, or
-- with code 4 how many there would be.
create or replace function /*:*/join_answer(integer, uuid, uuid, integer, boolean)
returns table (
    code smallint, message_id uuid, moved integer, ended boolean, status smallint, expected_steps integer,
    attached_steps integer, completed_steps integer, failed_steps integer, expires_in_us bigint
)
language sql volatile security definer
set search_path = pg_catalog, pg_temp
set jit = off
as $body$
select $1::smallint, $3, $4, $5, j.status, j.expected_steps, j.attached_steps, j.completed_steps, j.failed_steps,
       (extract(epoch from greatest(j.expires_at - statement_timestamp(), j.expires_at - j.expires_at)) * 1000000)::bigint
from (select $2 as join_id) a left join /*:*/outbox_join j on j.join_id = a.join_id
$body$;

create or replace function /*:*/attach_steps(to_join uuid, messages uuid[])
returns table (
    code smallint, message_id uuid, moved integer, ended boolean, status smallint, expected_steps integer,
    attached_steps integer, completed_steps integer, failed_steps integer, expires_in_us bigint
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
as $body$
#variable_conflict use_column
declare
    v_join /*:*/outbox_join;
    v_new uuid[];
    v_missing uuid;
    v_count integer;
    v_completed integer;
    v_failed integer;
    v_code integer := 0;
    v_ended boolean := false;
begin
    perform 1 from /*:*/outbox o where o.message_id = any(messages) order by o.seq for share;
    select * into v_join from /*:*/outbox_join j where j.join_id = to_join for no key update;
    if not found then
        return query select * from /*:*/join_answer(1, to_join, null, 0, false);
        return;
    end if;
    select array_agg(distinct a.id), count(distinct a.id) into v_new, v_count
    from unnest(messages) as a (id)
    where not exists (
        select 1 from /*:*/outbox_join_member m where m.join_id = to_join and m.message_id = a.id);
    if v_count > 0 then
        select a.id into v_missing from unnest(v_new) as a (id)
        where not exists (select 1 from /*:*/outbox o where o.message_id = a.id)
        order by a.id limit 1;
        v_code := case when v_missing is not null then 2
                       when v_join.status <> 0 then 3
                       when v_join.attached_steps + v_count > v_join.expected_steps then 4
                       else 0 end;
        if v_code = 0 then
            insert into /*:*/outbox_join_member (join_id, message_id, status, created_at, updated_at)
            select to_join, o.message_id, case o.state when 2 then 1 when 3 then 2 else 0 end,
                   statement_timestamp(), statement_timestamp()
            from /*:*/outbox o where o.message_id = any(v_new);
            select count(*) filter (where o.state = 2), count(*) filter (where o.state = 3)
            into v_completed, v_failed
            from /*:*/outbox o where o.message_id = any(v_new);
            v_ended := v_join.completed_steps + v_join.failed_steps + v_completed + v_failed >= v_join.expected_steps;
            update /*:*/outbox_join j
            set attached_steps = j.attached_steps + v_count,
                completed_steps = j.completed_steps + v_completed,
                failed_steps = j.failed_steps + v_failed,
                updated_at = case when v_completed + v_failed > 0 then statement_timestamp() else j.updated_at end,
                ended_at = case when v_ended then statement_timestamp() end,
                status = case when not v_ended then 0 when j.failed_steps + v_failed > 0 then 2 else 1 end
            where j.join_id = to_join;
            if v_ended then
                perform /*:*/wake_waits(array[to_join]);
            end if;
        end if;
    end if;
    return query select * from /*:*/join_answer(
        v_code, to_join, v_missing,
        case v_code when 0 then v_count when 4 then v_join.attached_steps + v_count else 0 end, v_ended);
end
$body$;

create or replace function /*:*/report_step(of_join uuid, message uuid, ending smallint)
returns table (
    code smallint, message_id uuid, moved integer, ended boolean, status smallint, expected_steps integer,
    attached_steps integer, completed_steps integer, failed_steps integer, expires_in_us bigint
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
as $body$
#variable_conflict use_column
declare
    v_join /*:*/outbox_join;
    v_status smallint;
    v_counts boolean := false;
    v_ended boolean := false;
begin
    perform /*:*/require(ending in (1, 2), 'ending is ' || coalesce(ending::text, 'null'), 'Give it 1, completed, or 2, failed.');
    select * into v_join from /*:*/outbox_join j where j.join_id = of_join for no key update;
    if not found then
        return query select * from /*:*/join_answer(1, of_join, null, 0, false);
        return;
    end if;
    select m.status into v_status from /*:*/outbox_join_member m where m.join_id = of_join and m.message_id = message;
    if not found then
        return query select * from /*:*/join_answer(2, of_join, message, 0, false);
        return;
    end if;
    if v_status = 0 then
        update /*:*/outbox_join_member m
        set status = ending + case when v_join.status <> 0 then 2 else 0 end, updated_at = statement_timestamp()
        where m.join_id = of_join and m.message_id = message;
        v_counts := v_join.status = 0;
    end if;
    if v_counts then
        v_ended := v_join.completed_steps + v_join.failed_steps + 1 >= v_join.expected_steps;
        update /*:*/outbox_join j
        set completed_steps = j.completed_steps + (ending = 1)::integer,
            failed_steps = j.failed_steps + (ending = 2)::integer,
            updated_at = statement_timestamp(),
            ended_at = case when v_ended then statement_timestamp() end,
            status = case when not v_ended then 0 when j.failed_steps + (ending = 2)::integer > 0 then 2 else 1 end
        where j.join_id = of_join;
        if v_ended then
            perform /*:*/wake_waits(array[of_join]);
        end if;
    end if;
    return query select * from /*:*/join_answer(0, of_join, null, v_counts::integer, v_ended);
end
$body$;

create or replace function /*:*/end_join(of_join uuid)
returns table (
    code smallint, message_id uuid, moved integer, ended boolean, status smallint, expected_steps integer,
    attached_steps integer, completed_steps integer, failed_steps integer, expires_in_us bigint
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
as $body$
#variable_conflict use_column
declare
    v_status smallint;
begin
    select j.status into v_status from /*:*/outbox_join j where j.join_id = of_join for no key update;
    if not found then
        return query select * from /*:*/join_answer(1, of_join, null, 0, false);
        return;
    end if;
    if v_status = 0 then
        update /*:*/outbox_join j
        set status = 3, updated_at = statement_timestamp(), ended_at = statement_timestamp()
        where j.join_id = of_join;
        perform /*:*/wake_waits(array[of_join]);
    end if;
    return query select * from /*:*/join_answer(0, of_join, null, 0, v_status = 0);
end
$body$;

-- From here to the end of the transaction the join's end waits, and will find the message.
create or replace function /*:*/wait_for_join(of_join uuid, message uuid)
returns table (
    code smallint, message_id uuid, moved integer, ended boolean, status smallint, expected_steps integer,
    attached_steps integer, completed_steps integer, failed_steps integer, expires_in_us bigint
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
as $body$
#variable_conflict use_column
begin
    perform 1 from /*:*/outbox_join j where j.join_id = of_join for no key update;
    if not found then
        return query select * from /*:*/join_answer(1, of_join, null, 0, false);
        return;
    end if;
    insert into /*:*/outbox_join_wait (join_id, message_id) values (of_join, message) on conflict do nothing;
    return query select * from /*:*/join_answer(0, of_join, null, 0, false);
end
$body$;

-- Stores a join, unless its id is stored already; says whether it did.
create or replace function /*:*/add_join(
    join_id uuid, grouping_key text, expected_steps integer, metadata text, expires_at timestamptz
)
returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $body$
begin
    insert into /*:*/outbox_join (
        join_id, grouping_key, status, expected_steps, attached_steps, completed_steps, failed_steps, created_at, updated_at,
        expires_at, metadata
    )
    values (
        join_id, grouping_key, 0, expected_steps, 0, 0, 0, statement_timestamp(), statement_timestamp(), expires_at, metadata
    )
    on conflict do nothing;
    return found;
end
$body$;

-- For services in other languages: the same, with errors for what is refused.

create or replace function /*:*/start_join(
    expected_steps integer, grouping_key text default null, metadata text default null,
    expires_after interval default null, join_id uuid default /*:*/new_id()
)
returns uuid
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set jit = off
as $body$
begin
    join_id := coalesce(join_id, /*:*/new_id());
    perform /*:*/require(
        expected_steps >= 1, 'expected_steps is ' || coalesce(expected_steps::text, 'null'), 'Give it at least 1.');
    perform /*:*/require(
        octet_length(coalesce(grouping_key, '')) <= 255, 'grouping_key has more than 255 bytes', 'Shorten it.');
    perform /*:*/require(
        octet_length(coalesce(metadata, '')) <= 65536, 'metadata has more than 64 KiB', 'Shorten it.');
    perform /*:*/require_delay('expires_after', coalesce(expires_after, interval '0'));
    perform /*:*/add_join(
        join_id, nullif(grouping_key, ''), expected_steps, nullif(metadata, ''), clock_timestamp() + expires_after);
    return join_id;
end
$body$;

create or replace function /*:*/require_join(code smallint, join_id uuid)
returns void
language sql immutable
set search_path = pg_catalog, pg_temp
as $body$
select /*:*/require(
    code = 0,
    case code when 1 then 'there is no such join: ' || coalesce(join_id::text, 'null')
              when 2 then 'the message is not stored, or not a step of join ' || join_id
              when 3 then 'the join is over: ' || join_id
              else 'the join expects no more steps: ' || join_id end,
    case code when 1 then 'Start it first.'
              when 2 then 'Publish and attach it in one transaction.'
              when 3 then 'Start another.'
              else 'Start it with as many steps as it will have.' end)
$body$;

create or replace function /*:*/attach(join_id uuid, message_id uuid)
returns void
language sql volatile
set search_path = pg_catalog, pg_temp
set jit = off
as $body$
select /*:*/require_join(a.code, $1) from /*:*/attach_steps($1, array[$2]) a
$body$;

create or replace function /*:*/report_step_completed(join_id uuid, message_id uuid)
returns boolean
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set jit = off
as $body$
declare
    v_code smallint;
    v_moved integer;
begin
    select r.code, r.moved into v_code, v_moved from /*:*/report_step($1, $2, 1::smallint) r;
    perform /*:*/require_join(v_code, $1);
    return v_moved > 0;
end
$body$;

create or replace function /*:*/report_step_failed(join_id uuid, message_id uuid)
returns boolean
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set jit = off
as $body$
declare
    v_code smallint;
    v_moved integer;
begin
    select r.code, r.moved into v_code, v_moved from /*:*/report_step($1, $2, 2::smallint) r;
    perform /*:*/require_join(v_code, $1);
    return v_moved > 0;
end
$body$;

create or replace function /*:*/cancel_join(join_id uuid)
returns boolean
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set jit = off
as $body$
declare
    v_code smallint;
    v_ended boolean;
begin
    select c.code, c.ended into v_code, v_ended from /*:*/end_join($1) c;
    perform /*:*/require_join(v_code, $1);
    return v_ended;
end
$body$;

-- Says what is to be sent when the join is over: one message if it completed, another, or none, if a step failed or its
-- deadline passed. A worker of posthaste's must be running that has handlers.
create or replace function /*:*/enqueue_join_wait(
    join_id uuid, on_complete_topic text, on_complete_payload text default '', on_fail_topic text default null,
    on_fail_payload text default '', fail_if_any_step_failed boolean default true, wait_topic text default 'join.wait',
    check_after interval default interval '60 seconds'
)
returns uuid
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set jit = off
as $body$
declare
    v_id uuid := /*:*/new_id();
    v_answer record;
begin
    check_after := coalesce(check_after, interval '60 seconds');
    perform /*:*/require(
        octet_length(coalesce(on_complete_topic, '')) between 1 and 255, 'on_complete_topic is not acceptable',
        'Give it 1 to 255 bytes.');
    perform /*:*/require(
        on_fail_topic is null or octet_length(on_fail_topic) between 1 and 255, 'on_fail_topic is not acceptable',
        'Give it 1 to 255 bytes, or null.');
    select * into v_answer from /*:*/wait_for_join($1, v_id);
    perform /*:*/require_join(v_answer.code, $1);
    perform 1 from /*:*/enqueue_bytes(
        topic => coalesce(wait_topic, 'join.wait'),
        payload => convert_to(jsonb_build_object(
            'join_id', $1, 'fail_if_any_step_failed', coalesce(fail_if_any_step_failed, true),
            'on_complete', jsonb_build_object('topic', on_complete_topic, 'payload', coalesce(on_complete_payload, '')),
            'on_fail', case when on_fail_topic is not null then
                jsonb_build_object('topic', on_fail_topic, 'payload', coalesce(on_fail_payload, '')) end)::text, 'UTF8'),
        message_id => v_id,
        content_type => 'application/json',
        due_at => case when v_answer.status = 0 then least(
            clock_timestamp() + check_after,
            clock_timestamp() + v_answer.expires_in_us * interval '1 microsecond') end);
    return v_id;
end
$body$;
