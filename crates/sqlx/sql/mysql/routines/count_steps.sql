-- Counts what became of messages in every join that they are pending steps of, and answers the joins that end by it, with
-- null in front. In the READ COMMITTED transaction of its caller, who has locked the messages: so nobody attaches them
-- meanwhile. Joins are locked in the order of their ids, by everybody who locks more than one; steps and waits are changed
-- only by who holds the lock of their join.
-- p_ends: [[message in hexadecimal, ending], ..]. Endings: 1 completed, 2 failed, 0 deferred, which matters only to
-- messages that wait for a join: if that is over, they are due. p_now: what time it is for the caller.
create procedure /*:*/count_steps(in p_ends longtext character set utf8mb4, in p_now datetime(6))
modifies sql data
sql security invoker
begin
    declare v_joins, v_moves, v_ended, v_deferred longtext character set utf8mb4;

    -- The lists below are cut at this length.
    set session group_concat_max_len = 8388608;
    select concat('["', group_concat(hex(concerned.join_id) order by concerned.join_id separator '","'), '"]') into v_joins
    from (
        select m.join_id
        from json_table(p_ends, '$[*]' columns (
            id varchar(32) character set utf8mb4 path '$[0]', ending int path '$[1]')) e
        straight_join /*:*/outbox_join_member m force index (/*+*/outbox_join_member_message_id)
            on m.message_id = unhex(e.id)
        where m.status = 0 and e.ending <> 0
        union
        select w.join_id
        from json_table(p_ends, '$[*]' columns (
            id varchar(32) character set utf8mb4 path '$[0]', ending int path '$[1]')) e
        straight_join /*:*/outbox_join_wait w force index (/*+*/outbox_join_wait_message_id) on w.message_id = unhex(e.id)
        where e.ending = 0 and w.continued_at is null
    ) concerned;

    if v_joins is not null then
        select json_arrayagg(hex(locked.join_id)) into v_joins from (
            select j.join_id
            from json_table(v_joins, '$[*]' columns (id varchar(32) character set utf8mb4 path '$')) c
            straight_join /*:*/outbox_join j force index (primary) on j.join_id = unhex(c.id)
            for update
        ) locked;

        -- What the joins were is kept with the moves: only a pending one counts, and only a cancelled or expired one has
        -- pending steps left, which are late.
        select json_arrayagg(json_array(hex(m.join_id), e.id, e.ending, j.status)) into v_moves
        from json_table(p_ends, '$[*]' columns (
            id varchar(32) character set utf8mb4 path '$[0]', ending int path '$[1]')) e
        straight_join /*:*/outbox_join_member m force index (/*+*/outbox_join_member_message_id)
            on m.message_id = unhex(e.id)
        straight_join /*:*/outbox_join j force index (primary) on j.join_id = m.join_id
        where m.status = 0 and e.ending <> 0;

        if v_moves is not null then
            update (
                select unhex(v.id) as join_id, sum(v.ending = 1) as completed, sum(v.ending = 2) as failed
                from json_table(v_moves, '$[*]' columns (
                    id varchar(32) character set utf8mb4 path '$[0]', ending int path '$[2]', status int path '$[3]')) v
                where v.status = 0
                group by v.id
            ) c
            straight_join /*:*/outbox_join j force index (primary) on j.join_id = c.join_id
            set j.completed_steps = j.completed_steps + c.completed, j.failed_steps = j.failed_steps + c.failed,
                j.updated_at = p_now;

            -- Step by step, because the order of assignments in an update of several tables is nobody's promise.
            update json_table(v_joins, '$[*]' columns (id varchar(32) character set utf8mb4 path '$')) c
            straight_join /*:*/outbox_join j force index (primary) on j.join_id = unhex(c.id)
            set j.ended_at = p_now, j.status = if(j.failed_steps > 0, 2, 1)
            where j.status = 0 and j.completed_steps + j.failed_steps >= j.expected_steps;

            if row_count() > 0 then
                select json_arrayagg(counted.id) into v_ended
                from (
                    select distinct v.id
                    from json_table(v_moves, '$[*]' columns (
                        id varchar(32) character set utf8mb4 path '$[0]', status int path '$[3]')) v
                    where v.status = 0
                ) counted
                straight_join /*:*/outbox_join j force index (primary) on j.join_id = unhex(counted.id)
                where j.status <> 0;
                select null as none, j.join_id, j.status, j.expected_steps, j.completed_steps, j.failed_steps
                from json_table(v_ended, '$[*]' columns (id varchar(32) character set utf8mb4 path '$')) c
                straight_join /*:*/outbox_join j force index (primary) on j.join_id = unhex(c.id)
                order by j.join_id;
            end if;

            update json_table(v_moves, '$[*]' columns (
                id varchar(32) character set utf8mb4 path '$[0]', message varchar(32) character set utf8mb4 path '$[1]',
                ending int path '$[2]', status int path '$[3]')) v
            straight_join /*:*/outbox_join_member m force index (primary)
                on m.join_id = unhex(v.id) and m.message_id = unhex(v.message)
            set m.status = v.ending + if(v.status in (3, 4), 2, 0), m.updated_at = p_now
            where m.status = 0;
        end if;

        if v_ended is not null then
            call /*:*/wake_waits(v_ended, p_now);
        end if;
        -- What waits for a join that is over by now was deferred too late: its join's end could not make it due.
        select json_arrayagg(o.seq) into v_deferred
        from json_table(p_ends, '$[*]' columns (
            id varchar(32) character set utf8mb4 path '$[0]', ending int path '$[1]')) e
        straight_join /*:*/outbox_join_wait w force index (/*+*/outbox_join_wait_message_id) on w.message_id = unhex(e.id)
        straight_join /*:*/outbox_join j force index (primary) on j.join_id = w.join_id
        straight_join /*:*/outbox o force index (/*+*/outbox_message_id) on o.message_id = w.message_id
        where e.ending = 0 and w.continued_at is null and j.status <> 0;
        if v_deferred is not null then
            update json_table(v_deferred, '$[*]' columns (seq bigint path '$')) s
            straight_join /*:*/outbox o force index (primary) on o.seq = s.seq
            set o.due_at = p_now;
        end if;
    end if;
end
