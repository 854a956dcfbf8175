-- Gives up messages that nobody claimed before their expiry. As in reap, the change by primary key decides.
create procedure /*:*/expire(in p_limit int)
modifies sql data
sql security invoker
begin
    declare v_now datetime(6);
    declare v_seqs longtext character set utf8mb4;
    declare v_expired int;
    declare exit handler for sqlexception begin rollback; resignal; end;

    set transaction isolation level read committed;
    start transaction;
    -- MariaDB cuts the lists of numbers below at this length.
    set session group_concat_max_len = 1048576;
    set v_now = utc_timestamp(6);

    select json_arrayagg(seq) into v_seqs from (
        select seq from /*:*/outbox force index (/*+*/outbox_expiring)
        where state = 0 and expires_at <= v_now
        order by expires_at, seq
        limit p_limit
    ) over_age;

    update json_table(v_seqs, '$[*]' columns (seq bigint path '$')) s
    straight_join /*:*/outbox o on o.seq = s.seq
    set o.done_at = v_now, o.error_class = 6, o.last_error = 'expired', o.state = 3,
        o.due_at = if(o.due_at = '9999-12-31 23:59:59.999999', v_now, o.due_at)
    where o.state = 0 and o.expires_at <= v_now;
    set v_expired = row_count();
    commit;
    select v_expired as expired;
end
