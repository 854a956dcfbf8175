-- The inbox from other languages, in the caller's transaction: remembers a message and says whether it is there for the first
-- time. Act only then, and in the same transaction. Answers 'first', 'repeated' or 'altered' (there with another payload).
create or replace function /*:*/inbox_once(
    consumer text, source text, message_id uuid, topic text, payload bytea, keep_payload boolean default false,
    occurred_at timestamptz default null
)
returns text
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set jit = off
as $body$
declare
    v_field text;
    v_value text;
    v_max integer;
    v_hash bytea := sha256(payload);
    v_found bytea;
begin
    for v_field, v_value, v_max in values ('consumer', consumer, 100), ('source', source, 255), ('topic', topic, 255) loop
        perform /*:*/require(
            octet_length(v_value) between 1 and v_max,
            format('%s has %s bytes', v_field, coalesce(octet_length(v_value), 0)), format('Give it 1 to %s bytes.', v_max));
    end loop;
    perform /*:*/require(message_id is not null, 'message_id is null', 'Give it the id that its source knows it by.');
    perform /*:*/require(payload is not null, 'payload is null', 'Give it an empty value if there is none.');

    -- See remember.sql.
    insert into /*:*/outbox_inbox as i (
        consumer, source, message_id, topic, payload_hash, payload, occurred_at, received_at
    ) values (
        inbox_once.consumer, inbox_once.source, inbox_once.message_id, inbox_once.topic, v_hash,
        case when inbox_once.keep_payload then inbox_once.payload end, inbox_once.occurred_at, clock_timestamp()
    )
    on conflict do nothing;
    if found then
        return 'first';
    end if;
    select i.payload_hash into v_found from /*:*/outbox_inbox i
    where i.consumer = inbox_once.consumer and i.source = inbox_once.source and i.message_id = inbox_once.message_id;
    if v_found is null then
        raise exception 'the message was forgotten at the same moment'
            using errcode = 'serialization_failure', hint = 'Begin again, in a new transaction.';
    end if;
    return case when v_found = v_hash then 'repeated' else 'altered' end;
end
$body$;

-- Forgets what a consumer received so long ago, and answers how many it were: call it again until that is less than the limit.
-- See forget_inbox.sql.
create or replace function /*:*/inbox_forget(
    consumer text, keep interval, max_messages integer default 1000, out forgotten bigint
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
as $body$
begin
    max_messages := coalesce(max_messages, 1000);
    perform /*:*/require(consumer is not null, 'consumer is null', 'Name the consumer.');
    perform /*:*/require(
        keep > interval '0' and keep <= interval '100 years', 'keep is ' || coalesce(keep::text, 'null'),
        'Give it more than the broker may take to deliver a message again.');
    perform /*:*/require(
        max_messages between 1 and 1000, 'max_messages is ' || max_messages, 'Give it 1 to 1000.');
    delete from /*:*/outbox_inbox d
    where d.ctid = any(array(
        select i.ctid from /*:*/outbox_inbox i
        where i.consumer = inbox_forget.consumer and i.received_at < statement_timestamp() - keep
        order by i.received_at
        limit max_messages));
    get diagnostics forgotten = row_count;
end
$body$;
