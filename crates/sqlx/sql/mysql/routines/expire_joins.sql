-- Ends pending joins whose deadline has passed: this one, or the first so many; what waits for them is due. Answers them,
-- with null in front. Of the many, what others hold is left for later. In the READ COMMITTED transaction of its caller.
create procedure /*:*/expire_joins(in p_limit int, in p_only binary(16), in p_now datetime(6))
modifies sql data
sql security invoker
begin
    declare v_joins longtext character set utf8mb4;

    -- MariaDB cuts the lists of ids below at this length.
    set session group_concat_max_len = 8388608;

    if p_only is not null then
        -- Who asks for one wants to know what it is now: he waits for its holder.
        select json_array(hex(join_id)) into v_joins from /*:*/outbox_join force index (primary)
        where join_id = p_only and status = 0 and expires_at <= p_now
        for update;
    else
        select json_arrayagg(hex(join_id)) into v_joins from (
            select join_id from /*:*/outbox_join force index (/*+*/outbox_join_expiring)
            where status = 0 and expires_at <= p_now
            order by expires_at, join_id
            limit p_limit
        ) overdue;
        select json_arrayagg(hex(join_id)) into v_joins from (
            select j.join_id
            from json_table(v_joins, '$[*]' columns (id varchar(32) character set utf8mb4 path '$')) c
            straight_join /*:*/outbox_join j force index (primary) on j.join_id = unhex(c.id)
            where j.status = 0 and j.expires_at <= p_now
            for update skip locked
        ) locked;
    end if;

    if v_joins is not null then
        update json_table(v_joins, '$[*]' columns (id varchar(32) character set utf8mb4 path '$')) c
        straight_join /*:*/outbox_join j force index (primary) on j.join_id = unhex(c.id)
        set j.status = 4, j.updated_at = p_now, j.ended_at = p_now;

        select null as none, j.join_id, j.status, j.expected_steps, j.completed_steps, j.failed_steps
        from json_table(v_joins, '$[*]' columns (
            n for ordinality, id varchar(32) character set utf8mb4 path '$')) c
        straight_join /*:*/outbox_join j force index (primary) on j.join_id = unhex(c.id)
        order by c.n;

        call /*:*/wake_waits(v_joins, p_now);
    end if;
end
