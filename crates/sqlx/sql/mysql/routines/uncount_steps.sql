-- Takes back that messages had failed, wherever that is still open: what was counted in a join that is over stays. In the
-- READ COMMITTED transaction of its caller, who has locked the messages; for the locks see count_steps.
-- p_messages: a JSON array of ids in hexadecimal.
create procedure /*:*/uncount_steps(in p_messages longtext character set utf8mb4)
modifies sql data
sql security invoker
begin
    declare v_now datetime(6) default utc_timestamp(6);
    declare v_joins, v_moves longtext character set utf8mb4;

    -- The lists below are cut at this length.
    set session group_concat_max_len = 8388608;
    select concat('["', group_concat(distinct hex(m.join_id) order by m.join_id separator '","'), '"]') into v_joins
    from json_table(p_messages, '$[*]' columns (id varchar(32) character set utf8mb4 path '$')) i
    straight_join /*:*/outbox_join_member m force index (/*+*/outbox_join_member_message_id) on m.message_id = unhex(i.id)
    where m.status in (2, 4);

    if v_joins is not null then
        select json_arrayagg(hex(locked.join_id)) into v_joins from (
            select j.join_id
            from json_table(v_joins, '$[*]' columns (id varchar(32) character set utf8mb4 path '$')) c
            straight_join /*:*/outbox_join j force index (primary) on j.join_id = unhex(c.id)
            for update
        ) locked;

        select json_arrayagg(json_array(hex(m.join_id), i.id, m.status)) into v_moves
        from json_table(p_messages, '$[*]' columns (id varchar(32) character set utf8mb4 path '$')) i
        straight_join /*:*/outbox_join_member m force index (/*+*/outbox_join_member_message_id)
            on m.message_id = unhex(i.id)
        straight_join /*:*/outbox_join j force index (primary) on j.join_id = m.join_id
        where m.status = 4 or (m.status = 2 and j.status = 0);

        update (
            select unhex(v.id) as join_id, count(*) as failed
            from json_table(v_moves, '$[*]' columns (
                id varchar(32) character set utf8mb4 path '$[0]', status int path '$[2]')) v
            where v.status = 2
            group by v.id
        ) c
        straight_join /*:*/outbox_join j force index (primary) on j.join_id = c.join_id
        set j.failed_steps = j.failed_steps - c.failed, j.updated_at = v_now;

        update json_table(v_moves, '$[*]' columns (
            id varchar(32) character set utf8mb4 path '$[0]', message varchar(32) character set utf8mb4 path '$[1]')) v
        straight_join /*:*/outbox_join_member m force index (primary)
            on m.join_id = unhex(v.id) and m.message_id = unhex(v.message)
        set m.status = 0, m.updated_at = v_now;
    end if;
end
