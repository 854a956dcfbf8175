-- Starting a join from other languages, in the caller's transaction. Limits are in bytes, as in Rust; one whose id is
-- stored already is left as it is.
-- p_options is null or a JSON object with any of: join_id, grouping_key, metadata, expires_us.
create procedure /*:*/start_join(
    in p_expected_steps int, in p_options longtext character set utf8mb4, out p_id char(36) character set utf8mb4
)
modifies sql data
sql security invoker
begin
    declare v_options longtext character set utf8mb4 default coalesce(nullif(p_options, 'null'), '{}');
    declare v_grouping_key, v_metadata longtext character set utf8mb4;
    declare v_fault varchar(500) character set utf8mb4;
    declare v_now datetime(6) default utc_timestamp(6);
    declare v_random char(32) character set utf8mb4 default md5(concat(uuid(), rand()));

    if not json_valid(v_options) or json_type(v_options) <> 'OBJECT' then
        signal sqlstate '22023' set message_text = 'options are not a JSON object';
    end if;
    select concat('unknown option ', k.name) into v_fault
    from json_table(json_keys(v_options), '$[*]' columns (name varchar(255) character set utf8mb4 path '$')) k
    -- Byte by byte, as the names are looked up below; an escaped name is not found there.
    where locate('\\', json_keys(v_options)) > 0
       or cast(k.name as binary) not in (
           'join_id', 'grouping_key', 'metadata', 'expires_us')
    limit 1;
    -- Null means absent.
    set v_options = json_merge_patch('{}', v_options);
    set v_grouping_key = json_unquote(json_extract(v_options, '$.grouping_key'));
    set v_metadata = json_unquote(json_extract(v_options, '$.metadata'));
    set v_fault = coalesce(v_fault, case
        when coalesce(p_expected_steps, 0) < 1 then 'expected steps: give it at least 1'
        when length(v_grouping_key) > 255
            then concat('grouping_key has ', length(v_grouping_key), ' bytes, the limit is 255')
        when length(v_metadata) > 65536 then concat('metadata has ', length(v_metadata), ' bytes, the limit is 65536')
        when json_type(json_extract(v_options, '$.expires_us')) <> 'INTEGER'
             or json_extract(v_options, '$.expires_us') not between 0 and 3153600000000000
            then 'expires_us: give it 0 to 100 years, in microseconds'
        when json_unquote(json_extract(v_options, '$.join_id'))
                 not regexp '^[0-9A-Fa-f]{8}-?[0-9A-Fa-f]{4}-?[0-9A-Fa-f]{4}-?[0-9A-Fa-f]{4}-?[0-9A-Fa-f]{12}$'
            then 'join_id: give it a UUID'
        end);
    if v_fault is not null then
        signal sqlstate '22023' set message_text = v_fault;
    end if;

    -- An id of version 7, ordered by time, unless the caller has one: then repeating the call is harmless.
    set p_id = lower(coalesce(
        replace(json_unquote(json_extract(v_options, '$.join_id')), '-', ''),
        concat(lpad(hex(floor(unix_timestamp(now(6)) * 1000)), 12, '0'), '7', substr(v_random, 1, 3),
               substr('89ab', 1 + floor(rand() * 4), 1), substr(v_random, 4, 15))));
    insert ignore into /*:*/outbox_join (
        join_id, grouping_key, expected_steps, metadata, expires_at, status, attached_steps, completed_steps, failed_steps,
        created_at, updated_at
    ) values (
        unhex(p_id), if(length(v_grouping_key) > 0, v_grouping_key, null), p_expected_steps,
        if(length(v_metadata) > 0, v_metadata, null),
        v_now + interval json_extract(v_options, '$.expires_us') microsecond, 0, 0, 0, 0, v_now, v_now
    );
    set p_id = concat_ws('-', substr(p_id, 1, 8), substr(p_id, 9, 4), substr(p_id, 13, 4), substr(p_id, 17, 4),
                         substr(p_id, 21));
end
