-- Gives up joins whose deadline has passed, and messages that nobody claimed before their expiry. As in reap, the change by
-- primary key decides. The joins that end by it are answers of their own, with null in front.
create procedure /*:*/expire(in p_limit int)
modifies sql data
sql security invoker
begin
    declare v_now datetime(6);
    declare v_seqs, v_ends longtext character set utf8mb4;
    declare v_expired int;
    declare v_newest binary(16);
    declare v_is_ours boolean default false;
    declare exit handler for 1568 signal sqlstate '25001' set message_text = 'this call commits: make it outside of your transaction';
    -- Never ends a transaction that the caller began.
    declare exit handler for sqlexception begin if v_is_ours then rollback and no chain no release; end if; resignal; end;

    set p_limit = coalesce(p_limit, 1000);
    set transaction isolation level read committed;
    start transaction;
    set v_is_ours = true;
    -- MariaDB cuts the lists of numbers below at this length.
    set session group_concat_max_len = 1048576;
    set v_now = utc_timestamp(6);
    call /*:*/expire_joins(p_limit, null, v_now);

    select json_arrayagg(seq) into v_seqs from (
        select seq from /*:*/outbox force index (/*+*/outbox_expiring)
        where state = 0 and expires_at <= v_now
        order by expires_at, seq
        limit p_limit
    ) over_age;
    -- What another session has locked waits for the next time.
    select json_arrayagg(seq) into v_seqs from (
        select o.seq
        from json_table(v_seqs, '$[*]' columns (seq bigint path '$')) s
        straight_join /*:*/outbox o force index (primary) on o.seq = s.seq
        where o.state = 0 and o.expires_at <= v_now
        for update skip locked
    ) free;

    update json_table(v_seqs, '$[*]' columns (seq bigint path '$')) s
    straight_join /*:*/outbox o force index (primary) on o.seq = s.seq
    set o.done_at = v_now, o.error_class = 6, o.last_error = 'expired', o.state = 3,
        o.due_at = if(o.due_at = '9999-12-31 23:59:59.999999', v_now, o.due_at)
    where o.state = 0 and o.expires_at <= v_now;
    set v_expired = row_count();
    select v_expired as expired;

    if v_expired > 0 then
        select max(join_id) into v_newest from /*:*/outbox_join;
    end if;
    if v_newest is not null then
        select json_arrayagg(json_array(hex(o.message_id), 2)) into v_ends
        from json_table(v_seqs, '$[*]' columns (seq bigint path '$')) s
        straight_join /*:*/outbox o force index (primary) on o.seq = s.seq
        where o.state = 3 and o.error_class = 6 and o.done_at = v_now;
        call /*:*/count_steps(v_ends, v_now);
    end if;
    commit and no chain no release;
end
