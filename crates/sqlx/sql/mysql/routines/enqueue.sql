-- Enqueueing from other languages, in the caller's transaction. Limits are in bytes, as in Rust; a message whose id or
-- dedup key is stored already is not stored again, and the answer names the stored one.
-- p_options is null or a JSON object with any of: message_id, key, delay_us, expires_us, priority, dedup_key,
-- correlation_id, aggregate_type, aggregate_id, tenant_id, order ('block', 'park', 'skip'), content_type, headers,
-- max_payload_bytes.
create procedure /*:*/enqueue(
    in p_topic varchar(1000) character set utf8mb4, in p_payload longblob, in p_options longtext character set utf8mb4,
    out p_id char(36) character set utf8mb4, out p_duplicate boolean
)
modifies sql data
sql security invoker
begin
    declare v_options longtext character set utf8mb4 default coalesce(nullif(p_options, 'null'), '{}');
    declare v_headers longtext character set utf8mb4;
    declare v_fault varchar(500) character set utf8mb4;
    declare v_id, v_found binary(16);
    declare v_hash binary(32);
    declare v_policy int;
    declare v_now datetime(6) default utc_timestamp(6);
    declare v_random char(32) character set utf8mb4 default md5(concat(uuid(), rand()));
    declare v_max_payload bigint;
    declare v_is_stored boolean default true;
    declare exit handler for 1020 signal sqlstate '40001'
        set message_text = 'another transaction changed this; the database has rolled yours back: begin it again';

    if not json_valid(v_options) or json_type(v_options) <> 'OBJECT' then
        signal sqlstate '22023' set message_text = 'options are not a JSON object';
    end if;
    set v_headers = json_extract(v_options, '$.headers');
    select concat('unknown option ', k.name) into v_fault
    from json_table(json_keys(v_options), '$[*]' columns (name varchar(255) character set utf8mb4 path '$')) k
    -- Byte by byte, as the names are looked up below; an escaped name is not found there.
    where locate('\\', json_keys(v_options)) > 0
       or cast(k.name as binary) not in (
           'message_id', 'key', 'delay_us', 'expires_us', 'priority', 'dedup_key', 'correlation_id', 'aggregate_type',
           'aggregate_id', 'tenant_id', 'order', 'content_type', 'headers', 'max_payload_bytes')
    limit 1;
    -- Null means absent.
    set v_options = json_merge_patch('{}', v_options);
    select concat(f.name, ' has ', length(f.value), ' bytes, the limit is ', f.most) into v_fault
    from (
        select 'topic' as name, p_topic as value, 255 as most
        union all select 'key', json_unquote(json_extract(v_options, '$.key')), 255
        union all select 'correlation_id', json_unquote(json_extract(v_options, '$.correlation_id')), 255
        union all select 'aggregate_type', json_unquote(json_extract(v_options, '$.aggregate_type')), 255
        union all select 'aggregate_id', json_unquote(json_extract(v_options, '$.aggregate_id')), 255
        union all select 'tenant_id', json_unquote(json_extract(v_options, '$.tenant_id')), 255
        union all select 'content_type', json_unquote(json_extract(v_options, '$.content_type')), 127
        union all select 'headers', json_extract(v_options, '$.headers'), 65536
    ) f
    where length(f.value) > f.most
    limit 1;
    set v_max_payload = if(json_type(json_extract(v_options, '$.max_payload_bytes')) = 'INTEGER',
                           json_extract(v_options, '$.max_payload_bytes'), 1048576);
    set v_policy = field(coalesce(json_unquote(json_extract(v_options, '$.order')), 'block'), 'block', 'park', 'skip') - 1;
    set v_fault = coalesce(v_fault, case
        when coalesce(length(p_topic), 0) = 0 then 'topic is empty: give it 1 to 255 bytes'
        when p_payload is null then 'payload is null: give it an empty value if there is none'
        when length(p_payload) > v_max_payload
            then concat('payload has ', length(p_payload), ' bytes, the limit is ', v_max_payload)
        when json_type(json_extract(v_options, '$.max_payload_bytes')) <> 'INTEGER'
            then 'max_payload_bytes: give it a number'
        when v_policy < 0 then 'order is none of block, park and skip'
        when json_type(json_extract(v_options, '$.priority')) <> 'INTEGER'
             or json_extract(v_options, '$.priority') not between -32768 and 32767
            then 'priority: give it -32768 to 32767'
        when json_type(json_extract(v_options, '$.delay_us')) <> 'INTEGER'
             or json_extract(v_options, '$.delay_us') not between 0 and 3153600000000000
            then 'delay_us: give it 0 to 100 years, in microseconds'
        when json_type(json_extract(v_options, '$.expires_us')) <> 'INTEGER'
             or json_extract(v_options, '$.expires_us') not between 0 and 3153600000000000
            then 'expires_us: give it 0 to 100 years, in microseconds'
        when json_type(json_extract(v_options, '$.dedup_key')) <> 'STRING'
            then 'dedup_key: give it a text'
        when json_unquote(json_extract(v_options, '$.message_id'))
                 not regexp '^[0-9A-Fa-f]{8}-?[0-9A-Fa-f]{4}-?[0-9A-Fa-f]{4}-?[0-9A-Fa-f]{4}-?[0-9A-Fa-f]{12}$'
            then 'message_id: give it a UUID'
        when json_type(v_headers) not in ('OBJECT', 'NULL') or exists (
                select 1 from json_table(json_extract(v_headers, '$.*'), '$[*]' columns (value json path '$')) h
                where json_type(h.value) <> 'STRING')
            then 'headers are not a JSON object of texts'
        end);
    if v_fault is not null then
        signal sqlstate '22023' set message_text = v_fault;
    end if;

    -- An id of version 7, ordered by time, unless the caller has one: then repeating the call is harmless.
    set v_id = unhex(coalesce(
        replace(json_unquote(json_extract(v_options, '$.message_id')), '-', ''),
        concat(lpad(hex(floor(unix_timestamp(now(6)) * 1000)), 12, '0'), '7', substr(v_random, 1, 3),
               substr('89ab', 1 + floor(rand() * 4), 1), substr(v_random, 4, 15))));
    if length(json_unquote(json_extract(v_options, '$.dedup_key'))) > 0 then
        set v_hash = unhex(sha2(json_unquote(json_extract(v_options, '$.dedup_key')), 256));
    end if;

    -- First, because looking for a twin that is not there would lock at some isolation levels, and stop other publishers.
    begin
        declare continue handler for 1062 set v_is_stored = false;
        insert into /*:*/outbox (
            message_id, topic, `key`, order_policy, dedup, payload, content_type, headers, correlation_id,
            aggregate_type, aggregate_id, tenant_id, priority, created_at, due_at, expires_at, state, epoch, attempts,
            lease_losses
        ) values (
            v_id, p_topic, nullif(cast(json_unquote(json_extract(v_options, '$.key')) as binary), ''), v_policy, v_hash, p_payload,
            coalesce(json_unquote(json_extract(v_options, '$.content_type')), 'application/json'),
            nullif(json_extract(v_options, '$.headers'), '{}'),
            nullif(cast(json_unquote(json_extract(v_options, '$.correlation_id')) as binary), ''),
            nullif(cast(json_unquote(json_extract(v_options, '$.aggregate_type')) as binary), ''),
            nullif(cast(json_unquote(json_extract(v_options, '$.aggregate_id')) as binary), ''),
            nullif(cast(json_unquote(json_extract(v_options, '$.tenant_id')) as binary), ''),
            coalesce(json_extract(v_options, '$.priority'), 0), v_now,
            v_now + interval coalesce(json_extract(v_options, '$.delay_us'), 0) microsecond,
            v_now + interval json_extract(v_options, '$.expires_us') microsecond, 0, 0, 0, 0
        );
    end;
    if not v_is_stored then
        select message_id into v_found from (
            select message_id from /*:*/outbox force index (/*+*/outbox_message_id) where message_id = v_id
            union all
            select message_id from /*:*/outbox force index (/*+*/outbox_dedup) where no_dedup = 0 and dedup = v_hash
        ) twins limit 1;
        -- Stored by another transaction after our snapshot: only a lock sees it. By its dedup key first, because a lock on an id
        -- that is not there stops other publishers.
        if v_found is null and v_hash is not null then
            select message_id into v_found from /*:*/outbox force index (/*+*/outbox_dedup)
            where no_dedup = 0 and dedup = v_hash lock in share mode;
        end if;
        if v_found is null then
            select message_id into v_found from /*:*/outbox force index (/*+*/outbox_message_id)
            where message_id = v_id lock in share mode;
        end if;
        if v_found is null then
            -- Its twin was removed at the same moment, or the next seq is taken.
            signal sqlstate '40001' set message_text =
                'not stored, yet no stored message has this id or dedup key: begin again; if it keeps failing, run posthaste doctor';
        end if;
    end if;
    set p_duplicate = v_found is not null;
    set p_id = lower(hex(coalesce(v_found, v_id)));
    set p_id = concat_ws('-', substr(p_id, 1, 8), substr(p_id, 9, 4), substr(p_id, 13, 4), substr(p_id, 17, 4),
                         substr(p_id, 21));
end
