-- The joins whose retention is over, and that no message waits for any more, locked in the transaction of its caller.
create procedure /*:*/over_joins(in p_keep_us bigint, in p_limit int)
modifies sql data
sql security invoker
begin
    declare v_joins longtext character set utf8mb4;

    -- MariaDB cuts the lists of ids below at this length.
    set session group_concat_max_len = 8388608;
    select json_arrayagg(hex(join_id)) into v_joins from (
        select j.join_id from /*:*/outbox_join j force index (/*+*/outbox_join_over)
        where j.ended_at < utc_timestamp(6) - interval p_keep_us microsecond
          and not exists (
              select 1 from /*:*/outbox_join_wait w
              straight_join /*:*/outbox o force index (/*+*/outbox_message_id) on o.message_id = w.message_id
              where w.join_id = j.join_id and o.state in (0, 1))
        order by j.ended_at, j.join_id
        limit p_limit
    ) over_age;
    select json_arrayagg(hex(join_id)) into v_joins from (
        select j.join_id
        from json_table(v_joins, '$[*]' columns (id varchar(32) character set utf8mb4 path '$')) c
        straight_join /*:*/outbox_join j force index (primary) on j.join_id = unhex(c.id)
        for update skip locked
    ) locked;

    -- A wait may have been registered before the lock.
    select j.join_id
    from json_table(v_joins, '$[*]' columns (id varchar(32) character set utf8mb4 path '$')) c
    straight_join /*:*/outbox_join j force index (primary) on j.join_id = unhex(c.id)
    where not exists (
        select 1 from /*:*/outbox_join_wait w
        straight_join /*:*/outbox o force index (/*+*/outbox_message_id) on o.message_id = w.message_id
        where w.join_id = j.join_id and o.state in (0, 1));
end
