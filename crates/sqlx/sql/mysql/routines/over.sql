-- The messages whose retention is over, done ones first, locked in the transaction of its caller. Steps of pending
-- joins are kept.
create procedure /*:*/over(in p_done_us bigint, in p_dead_us bigint, in p_limit int)
modifies sql data
sql security invoker
begin
    declare v_seqs longtext character set utf8mb4;

    -- MariaDB cuts the list of numbers below at this length.
    set session group_concat_max_len = 1048576;
    select json_arrayagg(seq) into v_seqs from (
        (select o.seq, o.state, o.done_at from /*:*/outbox o force index (/*+*/outbox_done)
         where o.state = 2 and o.done_at < utc_timestamp(6) - interval p_done_us microsecond
           and not exists (select 1 from /*:*/outbox_join_member m force index (/*+*/outbox_join_member_message_id)
                           straight_join /*:*/outbox_join j force index (primary) on j.join_id = m.join_id
                           where m.message_id = o.message_id and j.status = 0)
         order by o.done_at, o.seq limit p_limit)
        union all
        (select o.seq, o.state, o.done_at from /*:*/outbox o force index (/*+*/outbox_done)
         where o.state = 3 and o.done_at < utc_timestamp(6) - interval p_dead_us microsecond
           and not exists (select 1 from /*:*/outbox_join_member m force index (/*+*/outbox_join_member_message_id)
                           straight_join /*:*/outbox_join j force index (primary) on j.join_id = m.join_id
                           where m.message_id = o.message_id and j.status = 0)
         order by o.done_at, o.seq limit p_limit)
        order by state, done_at, seq
        limit p_limit
    ) over_age;

    select o.seq, o.`key`, o.state
    from json_table(v_seqs, '$[*]' columns (n for ordinality, seq bigint path '$')) s
    straight_join /*:*/outbox o force index (primary) on o.seq = s.seq
    where o.state in (2, 3)
      and not exists (select 1 from /*:*/outbox_join_member m force index (/*+*/outbox_join_member_message_id)
                      straight_join /*:*/outbox_join j force index (primary) on j.join_id = m.join_id
                      where m.message_id = o.message_id and j.status = 0)
    order by s.n
    for update skip locked;
end
