-- Sets aside the due messages of keys that a dead message with the policy park holds back. The dead ones are locked, so
-- that a requeue, which un-parks after it has changed them, comes either wholly before or wholly after.
create procedure /*:*/park(in p_limit int)
modifies sql data
sql security invoker
begin
    declare v_now datetime(6);
    declare v_holders, v_seqs longtext character set utf8mb4;
    declare v_parked int;
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

    select json_arrayagg(seq) into v_holders from (
        select seq from /*:*/outbox force index (/*+*/outbox_state)
        where state = 3 and open_key is not null and order_policy = 1
        order by seq
    ) dead;
    select json_arrayagg(seq) into v_holders from (
        select o.seq
        from json_table(v_holders, '$[*]' columns (seq bigint path '$')) s
        straight_join /*:*/outbox o force index (primary) on o.seq = s.seq
        where o.state = 3 and o.order_policy = 1 and o.error_class not in (6, 8)
        for update skip locked
    ) locked;

    select json_arrayagg(seq) into v_seqs from (
        select f.seq
        from json_table(v_holders, '$[*]' columns (seq bigint path '$')) s
        straight_join /*:*/outbox h on h.seq = s.seq
        straight_join /*:*/outbox f on f.open_key = h.`key` and f.seq > h.seq
        where f.state = 0 and f.due_at <= v_now
        order by f.seq
        limit p_limit
    ) behind;

    update json_table(v_seqs, '$[*]' columns (seq bigint path '$')) s
    straight_join /*:*/outbox o force index (primary) on o.seq = s.seq
    set o.due_at = '9999-12-31 23:59:59.999999'
    where o.state = 0 and o.due_at <= v_now;
    set v_parked = row_count();
    commit and no chain no release;
    select v_parked as parked;
end
