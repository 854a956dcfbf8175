-- Pauses topics: answers with one row, or with none if the very same are paused already. A topic in full, or the beginning of some
-- and a *, as in order.*; * alone is everything. From the commit on, nobody claims their messages. It commits nothing itself.
create procedure /*:*/pause(
    in p_topics varchar(255) character set utf8mb4, in p_by varchar(100) character set utf8mb4,
    in p_why varchar(1000) character set utf8mb4
)
modifies sql data
sql security invoker
begin
    declare v_new boolean default true;
    declare v_fault varchar(200) character set utf8mb4;
    -- Not `insert ignore`, which would swallow what else may be wrong; and how many rows were changed depends on the client.
    declare continue handler for 1062 set v_new = false;

    set v_fault = case
        when coalesce(length(p_topics), 0) not between 1 and 255 then 'topics: give 1 to 255 bytes'
        when locate('*', p_topics) not in (0, char_length(p_topics))
            then 'topics: use * only as the last character, as in order.*'
        when coalesce(length(p_by), 0) not between 1 and 100 then 'who: give 1 to 100 bytes'
        when coalesce(length(p_why), 0) not between 1 and 1000 then 'why: give 1 to 1000 bytes'
        end;
    if v_fault is not null then
        signal sqlstate '22023' set message_text = v_fault;
    end if;

    insert into /*:*/outbox_pause (topics, by_whom, why, since)
    values (cast(p_topics as binary), p_by, p_why, utc_timestamp(6));
    select true as paused from (select 1 as one) single where v_new;
end
