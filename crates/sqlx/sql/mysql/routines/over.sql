-- The messages whose retention is over, done ones first, locked in the transaction of its caller.
create procedure /*:*/over(in p_done_us bigint, in p_dead_us bigint, in p_limit int)
modifies sql data
sql security invoker
begin
    declare v_seqs longtext character set utf8mb4;

    -- MariaDB cuts the list of numbers below at this length.
    set session group_concat_max_len = 1048576;
    select json_arrayagg(seq) into v_seqs from (
        (select seq, state, done_at from /*:*/outbox force index (/*+*/outbox_done)
         where state = 2 and done_at < utc_timestamp(6) - interval p_done_us microsecond
         order by done_at, seq limit p_limit)
        union all
        (select seq, state, done_at from /*:*/outbox force index (/*+*/outbox_done)
         where state = 3 and done_at < utc_timestamp(6) - interval p_dead_us microsecond
         order by done_at, seq limit p_limit)
        order by state, done_at, seq
        limit p_limit
    ) over_age;

    select o.seq, o.`key`, o.state
    from json_table(v_seqs, '$[*]' columns (n for ordinality, seq bigint path '$')) s
    straight_join /*:*/outbox o on o.seq = s.seq
    where o.state in (2, 3)
    order by s.n
    for update skip locked;
end
