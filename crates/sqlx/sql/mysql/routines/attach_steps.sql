-- Makes messages steps of a join, in the transaction of its caller, and answers as join_answer does.
-- The messages are locked before the join, as settling does: so whoever attaches a message and whoever ends it see each
-- other's change. The caller's snapshot may be old: what decides is read with a lock. But what may not be there is looked
-- for with a lock only where the call may be refused: outside of READ COMMITTED that locks a gap, over which callers that
-- attach steps to new joins would deadlock.
-- p_messages: a JSON array of ids in hexadecimal. p_strict: what is refused is an error.
create procedure /*:*/attach_steps(
    in p_join binary(16), in p_messages longtext character set utf8mb4, in p_strict boolean
)
modifies sql data
sql security invoker
begin
    declare v_now datetime(6) default utc_timestamp(6);
    declare v_seqs, v_unseen, v_stored, v_more longtext character set utf8mb4;
    declare v_missing binary(16);
    declare v_asked, v_known, v_status, v_expected, v_attached, v_completed, v_failed int;
    declare v_new_completed, v_new_failed, v_unknown int default 0;
    declare v_new int;
    declare v_code, v_moved int default 0;
    declare v_ended boolean default false;
    declare exit handler for 1020 signal sqlstate '40001'
        set message_text = 'another transaction changed this; the database has rolled yours back: begin it again';

    -- The lists below are cut at this length.
    set session group_concat_max_len = 8388608;
    select count(distinct i.id), concat('[', group_concat(distinct o.seq order by o.seq), ']'),
           concat('["', group_concat(distinct if(o.seq is null, i.id, null) separator '","'), '"]')
    into v_asked, v_seqs, v_unseen
    from json_table(p_messages, '$[*]' columns (id varchar(32) character set utf8mb4 path '$')) i
    left join /*:*/outbox o force index (/*+*/outbox_message_id) on o.message_id = unhex(i.id);
    select json_arrayagg(json_array(hex(held.message_id), held.state)) into v_stored from (
        select o.message_id, o.state
        from json_table(v_seqs, '$[*]' columns (seq bigint path '$')) s
        straight_join /*:*/outbox o force index (primary) on o.seq = s.seq
        lock in share mode
    ) held;
    -- Stored after the caller's snapshot, or not at all.
    if v_unseen is not null then
        select json_arrayagg(json_array(hex(held.message_id), held.state)) into v_more from (
            select o.message_id, o.state
            from json_table(v_unseen, '$[*]' columns (id varchar(32) character set utf8mb4 path '$')) i
            straight_join /*:*/outbox o force index (/*+*/outbox_message_id) on o.message_id = unhex(i.id)
            lock in share mode
        ) held;
        if v_more is not null then
            set v_stored = if(v_stored is null, v_more, json_merge_preserve(v_stored, v_more));
        end if;
    end if;
    set v_known = coalesce(json_length(v_stored), 0);

    select status, expected_steps, attached_steps, completed_steps, failed_steps
    into v_status, v_expected, v_attached, v_completed, v_failed
    from /*:*/outbox_join where join_id = p_join
    for update;

    if v_status is null then
        set v_code = 1;
    elseif v_known < v_asked or v_status <> 0 or v_attached + v_known > v_expected then
        -- Refused, unless they are steps already.
        select count(*), coalesce(sum(o.seq is null), 0), min(if(o.seq is null, unhex(i.id), null))
        into v_new, v_unknown, v_missing
        from (
            select distinct t.id
            from json_table(p_messages, '$[*]' columns (id varchar(32) character set utf8mb4 path '$')) t
        ) i
        left join /*:*/outbox o force index (/*+*/outbox_message_id) on o.message_id = unhex(i.id)
        left join /*:*/outbox_join_member m force index (primary)
            on m.join_id = p_join and m.message_id = unhex(i.id)
        where m.join_id is null
        lock in share mode;
        set v_code = case when v_unknown > 0 then 2
                          when v_new = 0 then 0
                          when v_status <> 0 then 3
                          when v_attached + v_new > v_expected then 4
                          else 0 end;
        set v_moved = if(v_code = 4, v_attached + v_new, 0);
    end if;

    if v_code = 0 and coalesce(v_new, 1) > 0 then
        -- Steps that the caller's snapshot does not show are passed over by the insert, too; his own he does see. So the
        -- new ones are the difference.
        select count(*), coalesce(sum(m.status = 1), 0), coalesce(sum(m.status = 2), 0)
        into v_new, v_new_completed, v_new_failed
        from json_table(v_stored, '$[*]' columns (id varchar(32) character set utf8mb4 path '$[0]')) s
        straight_join /*:*/outbox_join_member m force index (primary)
            on m.join_id = p_join and m.message_id = unhex(s.id);

        insert ignore into /*:*/outbox_join_member (join_id, message_id, status, created_at, updated_at)
        select p_join, unhex(s.id), case s.state when 2 then 1 when 3 then 2 else 0 end, v_now, v_now
        from json_table(v_stored, '$[*]' columns (
            id varchar(32) character set utf8mb4 path '$[0]', state int path '$[1]')) s;

        select count(*) - v_new, coalesce(sum(m.status = 1), 0) - v_new_completed,
               coalesce(sum(m.status = 2), 0) - v_new_failed
        into v_new, v_new_completed, v_new_failed
        from json_table(v_stored, '$[*]' columns (id varchar(32) character set utf8mb4 path '$[0]')) s
        straight_join /*:*/outbox_join_member m force index (primary)
            on m.join_id = p_join and m.message_id = unhex(s.id);

        if v_new > 0 then
            set v_moved = v_new, v_completed = v_completed + v_new_completed, v_failed = v_failed + v_new_failed;
            set v_ended = v_completed + v_failed >= v_expected;
            update /*:*/outbox_join
            set attached_steps = v_attached + v_new,
                completed_steps = v_completed,
                failed_steps = v_failed,
                updated_at = if(v_new_completed + v_new_failed > 0, v_now, updated_at),
                ended_at = if(v_ended, v_now, null),
                status = case when not v_ended then 0 when v_failed > 0 then 2 else 1 end
            where join_id = p_join;
            if v_ended then
                call /*:*/wake_waits(json_array(hex(p_join)), utc_timestamp(6));
            end if;
        end if;
    end if;
    call /*:*/join_answer(v_code, p_join, v_missing, v_moved, v_ended, p_strict);
end
