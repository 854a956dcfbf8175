-- Says what is to be sent when the join is over, in the caller's transaction: one message if it completed, another, or
-- none, if a step failed or its deadline passed. A worker of posthaste's must be running that has handlers.
-- p_options is null or a JSON object with any of: on_complete_payload, on_fail_topic, on_fail_payload,
-- fail_if_any_step_failed (true unless it is false), wait_topic, check_after_us.
create procedure /*:*/enqueue_join_wait(
    in p_join char(36) character set utf8mb4, in p_on_complete_topic varchar(1000) character set utf8mb4,
    in p_options longtext character set utf8mb4, out p_id char(36) character set utf8mb4
)
modifies sql data
sql security invoker
begin
    declare v_options longtext character set utf8mb4 default coalesce(nullif(p_options, 'null'), '{}');
    declare v_join binary(16) default unhex(replace(p_join, '-', ''));
    declare v_fail_topic, v_payload longtext character set utf8mb4;
    declare v_fault varchar(500) character set utf8mb4;
    declare v_status int;
    declare v_expires datetime(6);
    declare v_delay bigint default 0;
    declare v_duplicate boolean;
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
           'on_complete_payload', 'on_fail_topic', 'on_fail_payload', 'fail_if_any_step_failed', 'wait_topic', 'check_after_us')
    limit 1;
    -- Null means absent.
    set v_options = json_merge_patch('{}', v_options);
    set v_fail_topic = json_unquote(json_extract(v_options, '$.on_fail_topic'));
    set v_fault = coalesce(v_fault, case
        when coalesce(length(p_on_complete_topic), 0) not between 1 and 255 then 'on_complete_topic: give it 1 to 255 bytes'
        when length(v_fail_topic) not between 1 and 255 then 'on_fail_topic: give it 1 to 255 bytes, or null'
        when json_type(json_extract(v_options, '$.fail_if_any_step_failed')) <> 'BOOLEAN'
            then 'fail_if_any_step_failed: give it true or false'
        when json_type(json_extract(v_options, '$.check_after_us')) <> 'INTEGER'
             or json_extract(v_options, '$.check_after_us') not between 0 and 3153600000000000
            then 'check_after_us: give it 0 to 100 years, in microseconds'
        end);
    if v_fault is not null then
        signal sqlstate '22023' set message_text = v_fault;
    end if;

    -- From here to the end of the transaction the join's end waits, and will find the message.
    select status, expires_at into v_status, v_expires from /*:*/outbox_join where join_id = v_join for update;
    if v_status is null then
        signal sqlstate '22023' set message_text = 'there is no such join: start it first';
    end if;
    if v_status = 0 then
        set v_delay = coalesce(json_extract(v_options, '$.check_after_us'), 60000000);
        if v_expires is not null then
            set v_delay = least(v_delay, greatest(0, timestampdiff(microsecond, utc_timestamp(6), v_expires)));
        end if;
    end if;
    set v_payload = concat(
        '{"join_id": ', json_quote(p_join),
        ', "fail_if_any_step_failed": ',
        if(coalesce(json_unquote(json_extract(v_options, '$.fail_if_any_step_failed')) = 'false', false), 'false', 'true'),
        ', "on_complete": ', json_object(
            'topic', p_on_complete_topic,
            'payload', coalesce(json_unquote(json_extract(v_options, '$.on_complete_payload')), '')),
        ', "on_fail": ', if(v_fail_topic is null, 'null', json_object(
            'topic', v_fail_topic,
            'payload', coalesce(json_unquote(json_extract(v_options, '$.on_fail_payload')), ''))),
        '}');
    call /*:*/enqueue(
        coalesce(json_unquote(json_extract(v_options, '$.wait_topic')), 'join.wait'), v_payload,
        concat('{"delay_us": ', v_delay, '}'), p_id, v_duplicate);
    insert ignore into /*:*/outbox_join_wait (join_id, message_id) values (v_join, unhex(replace(p_id, '-', '')));
end
