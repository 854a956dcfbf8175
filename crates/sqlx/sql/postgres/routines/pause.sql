-- Pausing topics from other languages: true, or false if there was nothing to change. A topic in full, or the beginning of some
-- and a *, as in order.*; * alone is everything. From the commit on, nobody claims their messages.
create or replace function /*:*/pause(topics text, by_whom text, why text)
returns boolean
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set jit = off
as $body$
declare
    v_field text;
    v_value text;
    v_max integer;
begin
    for v_field, v_value, v_max in values ('topics', topics, 255), ('by_whom', by_whom, 100), ('why', why, 1000) loop
        perform /*:*/require(
            octet_length(v_value) between 1 and v_max,
            format('%s has %s bytes', v_field, coalesce(octet_length(v_value), 0)), format('Give it 1 to %s bytes.', v_max));
    end loop;
    perform /*:*/require(
        position('*' in left(topics, -1)) = 0, 'topics has a * before its end',
        'Use * only as the last character, as in order.*');

    -- See pause.sql.
    insert into /*:*/outbox_pause (topics, by_whom, why, since)
    values (pause.topics, pause.by_whom, pause.why, statement_timestamp())
    on conflict do nothing;
    return found;
end
$body$;

create or replace function /*:*/resume(topics text)
returns boolean
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set jit = off
as $body$
begin
    delete from /*:*/outbox_pause p where p.topics = resume.topics;
    return found;
end
$body$;
