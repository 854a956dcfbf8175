-- Whether rows that are over are cleaned up: on the server, and in the outbox.
-- $1 schema, $2 prefix
select current_setting('autovacuum'), current_setting('track_counts'),
       (select case when o ~ '^autovacuum_enabled=(off|false|no|0)$' then 'off' end
        from pg_catalog.pg_class c
        join pg_catalog.pg_namespace n on n.oid = c.relnamespace
        cross join unnest(c.reloptions) o
        where n.nspname = $1::text and c.relname = $2::text || 'outbox' and o like 'autovacuum_enabled=%')
