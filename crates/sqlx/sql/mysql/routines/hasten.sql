-- Makes messages of these topics due now that wait for the end of an outage, those that have failed for longest first. They are
-- read without a lock and then locked by primary key, where their conditions are looked at again; what others hold is skipped.
create procedure /*:*/hasten(
    in p_topics longtext character set utf8mb4, in p_prefixes longtext character set utf8mb4, in p_limit int
)
modifies sql data
sql security invoker
begin
    declare v_now datetime(6);
    declare v_seqs, v_locked longtext character set utf8mb4;
    declare v_hastened int default 0;
    declare v_is_ours boolean default false;
    declare exit handler for 1568 signal sqlstate '25001' set message_text = 'this call commits: make it outside of your transaction';
    -- Never ends a transaction that the caller began.
    declare exit handler for sqlexception begin if v_is_ours then rollback and no chain no release; end if; resignal; end;

    set p_topics = nullif(p_topics, 'null'), p_prefixes = nullif(p_prefixes, 'null'), p_limit = coalesce(p_limit, 1000);
    set transaction isolation level read committed;
    start transaction;
    set v_is_ours = true;
    -- MariaDB cuts the lists of numbers below at this length.
    set session group_concat_max_len = 1048576;
    set v_now = utc_timestamp(6);

    select json_arrayagg(seq) into v_seqs from (
        select o.seq
        from /*:*/outbox o force index (/*+*/outbox_failing)
        where o.failing is not null and o.state = 0 and o.error_class = 2
          and o.due_at > v_now and o.due_at < '9999-12-31 23:59:59.999999'
          and ((p_topics is null and p_prefixes is null)
               or o.topic in (select cast(t.name as binary) from json_table(p_topics, '$[*]' columns (
                                  name varchar(255) character set utf8mb4 path '$')) t)
               or exists (select 1 from json_table(p_prefixes, '$[*]' columns (
                              name varchar(255) character set utf8mb4 path '$')) b
                          where left(o.topic, length(b.name)) = cast(b.name as binary)))
        order by o.failing, o.seq
        limit p_limit
    ) waiting;
    select json_arrayagg(seq) into v_locked from (
        select o.seq
        from json_table(v_seqs, '$[*]' columns (seq bigint path '$')) s
        straight_join /*:*/outbox o force index (primary) on o.seq = s.seq
        where o.state = 0 and o.error_class = 2 and o.due_at > v_now
        for update skip locked
    ) locked;
    update json_table(v_locked, '$[*]' columns (seq bigint path '$')) s
    straight_join /*:*/outbox o force index (primary) on o.seq = s.seq
    set o.due_at = v_now;
    set v_hastened = row_count();
    commit and no chain no release;
    select v_hastened as hastened;
end
