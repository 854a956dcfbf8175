-- The oldest open transaction of anybody else, in any database, because rows are cleaned up behind the oldest of all: its age in
-- seconds, its session, user and program; a prepared one has its name instead. And of how many sessions nothing may be seen.
select floor(extract(epoch from clock_timestamp() - t.since))::bigint::text, t.session, t.owner, t.program,
       (select count(*)::text from pg_catalog.pg_stat_activity where query = '<insufficient privilege>')
from (select 1) one
left join lateral (
    select a.xact_start as since, a.pid::text as session, a.usename::text as owner, a.application_name as program
    from pg_catalog.pg_stat_activity a
    where a.xact_start is not null and a.pid <> pg_backend_pid() and a.backend_type = 'client backend'
    union all
    select p.prepared, p.gid, p.owner::text, 'prepared transaction' from pg_catalog.pg_prepared_xacts p
    order by since
    limit 1
) t on true
