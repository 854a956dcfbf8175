-- The inbox from other languages, in the caller's transaction: remembers a message and says whether it is there for the first
-- time. Act only then, and in the same transaction.
-- p_once is 'first', 'repeated' or 'altered' (there with another payload). p_options is null or a JSON object with any
-- of: keep_payload (true or false), occurred_us (microseconds since 1970).
create procedure /*:*/inbox_once(
    in p_consumer varchar(1000) character set utf8mb4, in p_source varchar(1000) character set utf8mb4,
    in p_message_id varchar(100) character set utf8mb4, in p_topic varchar(1000) character set utf8mb4,
    in p_payload longblob, in p_options longtext character set utf8mb4, out p_once varchar(8) character set utf8mb4
)
modifies sql data
sql security invoker
begin
    declare v_options longtext character set utf8mb4 default coalesce(nullif(p_options, 'null'), '{}');
    declare v_fault varchar(500) character set utf8mb4;
    declare v_id binary(16);
    declare v_hash, v_found binary(32);
    declare exit handler for 1020 signal sqlstate '40001'
        set message_text = 'another transaction changed this; the database has rolled yours back: begin it again';

    if not json_valid(v_options) or json_type(v_options) <> 'OBJECT' then
        signal sqlstate '22023' set message_text = 'options are not a JSON object';
    end if;
    select concat('unknown option ', k.name) into v_fault
    from json_table(json_keys(v_options), '$[*]' columns (name varchar(255) character set utf8mb4 path '$')) k
    -- Byte by byte, as the names are looked up below; an escaped name is not found there.
    where locate('\\', json_keys(v_options)) > 0
       or cast(k.name as binary) not in (
           'keep_payload', 'occurred_us')
    limit 1;
    -- Null means absent.
    set v_options = json_merge_patch('{}', v_options);
    set v_fault = coalesce(v_fault, case
        when coalesce(length(p_consumer), 0) not between 1 and 100 then 'consumer: give it 1 to 100 bytes'
        when coalesce(length(p_source), 0) not between 1 and 255 then 'source: give it 1 to 255 bytes'
        when coalesce(length(p_topic), 0) not between 1 and 255 then 'topic: give it 1 to 255 bytes'
        when p_payload is null then 'payload is null: give it an empty value if there is none'
        when coalesce(p_message_id, '')
                 not regexp '^[0-9A-Fa-f]{8}-?[0-9A-Fa-f]{4}-?[0-9A-Fa-f]{4}-?[0-9A-Fa-f]{4}-?[0-9A-Fa-f]{12}$'
            then 'message_id: give it a UUID'
        when json_type(json_extract(v_options, '$.keep_payload')) <> 'BOOLEAN'
            then 'keep_payload: give it true or false'
        when json_type(json_extract(v_options, '$.occurred_us')) <> 'INTEGER'
             or json_extract(v_options, '$.occurred_us') not between 0 and 253370764800000000
            then 'occurred_us: give it microseconds since 1970, before the year 9999'
        end);
    if v_fault is not null then
        signal sqlstate '22023' set message_text = v_fault;
    end if;

    set v_id = unhex(replace(p_message_id, '-', ''));
    set v_hash = unhex(sha2(p_payload, 256));
    set p_once = 'first';
    begin
        -- See remember.sql, and remembered_hash.sql.
        declare continue handler for 1062 set p_once = 'repeated';
        insert into /*:*/outbox_inbox (
            consumer, source, message_id, topic, payload_hash, payload, occurred_at, received_at
        ) values (
            cast(p_consumer as binary), cast(p_source as binary), v_id, cast(p_topic as binary), v_hash,
            if(json_unquote(json_extract(v_options, '$.keep_payload')) = 'true', p_payload, null),
            timestamp '1970-01-01 00:00:00' + interval json_extract(v_options, '$.occurred_us') microsecond,
            utc_timestamp(6)
        );
    end;
    if p_once = 'repeated' then
        select payload_hash into v_found from /*:*/outbox_inbox
        where consumer = cast(p_consumer as binary) and source = cast(p_source as binary) and message_id = v_id
        lock in share mode;
        if v_found is null then
            signal sqlstate '40001' set message_text = 'the message was forgotten at the same moment: begin again';
        end if;
        set p_once = if(v_found = v_hash, 'repeated', 'altered');
    end if;
end
