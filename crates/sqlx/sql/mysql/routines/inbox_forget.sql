-- Forgets what a consumer received so long ago, the oldest first, in a transaction of its own, and answers how many it were.
-- The old ones are looked for without a lock: a scan that locks would wait at its end for the first row that is being
-- inserted. They are then locked by their primary key, without those that somebody has just met again; and looked at
-- once more, because one may have been forgotten and received anew meanwhile.
create procedure /*:*/inbox_forget(
    in p_consumer varchar(100) character set utf8mb4, in p_keep_us bigint, in p_limit int
)
modifies sql data
sql security invoker
begin
    declare v_rows longtext character set utf8mb4;
    declare v_consumer varbinary(400) default cast(p_consumer as binary);
    declare v_before datetime(6);
    declare v_is_ours boolean default false;
    declare exit handler for 1568 signal sqlstate '25001' set message_text = 'this call commits: make it outside of your transaction';
    -- Never ends a transaction that the caller began.
    declare exit handler for sqlexception begin if v_is_ours then rollback and no chain no release; end if; resignal; end;

    set p_limit = coalesce(p_limit, 1000);
    if p_consumer is null or coalesce(p_keep_us, 0) not between 1 and 3153600000000000
       or p_limit not between 1 and 1000 then
        signal sqlstate '22023'
            set message_text = 'give a consumer, 1 µs to 100 years in microseconds, and a limit of 1 to 1000';
    end if;

    set transaction isolation level read committed;
    start transaction;
    set v_is_ours = true;
    -- MariaDB cuts the lists below at this length.
    set session group_concat_max_len = 8388608;
    set v_before = utc_timestamp(6) - interval p_keep_us microsecond;

    select json_arrayagg(json_array(hex(source), hex(message_id))) into v_rows from (
        select i.source, i.message_id from /*:*/outbox_inbox i force index (/*+*/outbox_inbox_received)
        where i.consumer = v_consumer and i.received_at < v_before
        order by i.received_at
        limit p_limit
    ) old;
    select json_arrayagg(json_array(hex(source), hex(message_id))) into v_rows from (
        select i.source, i.message_id
        from json_table(v_rows, '$[*]' columns (
            source varchar(510) character set utf8mb4 path '$[0]', id varchar(32) character set utf8mb4 path '$[1]')) c
        straight_join /*:*/outbox_inbox i force index (primary)
            on i.consumer = v_consumer and i.source = unhex(c.source) and i.message_id = unhex(c.id)
        where i.received_at < v_before
        for update skip locked
    ) locked;
    delete i
    from json_table(v_rows, '$[*]' columns (
        source varchar(510) character set utf8mb4 path '$[0]', id varchar(32) character set utf8mb4 path '$[1]')) c
    -- By the other index it would wait for rows that are none of its business.
    straight_join /*:*/outbox_inbox i force index (primary)
        on i.consumer = v_consumer and i.source = unhex(c.source) and i.message_id = unhex(c.id);
    commit and no chain no release;
    select coalesce(json_length(v_rows), 0) as forgotten;
end
