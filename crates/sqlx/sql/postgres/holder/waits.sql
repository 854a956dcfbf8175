-- The sessions that use our tables and wait for a lock, each with the session that holds it: first those whose holder waits for nothing
-- itself. Then, without a waiter, the other sessions that keep a table of ours from being read or written. Never the text of a statement.
-- $1 schema, $2 prefix
with used as (
    select l.pid, l.granted and l.mode in ('AccessExclusiveLock', 'ExclusiveLock', 'ShareRowExclusiveLock', 'ShareLock') as keeps_off
    from pg_catalog.pg_locks l
    join pg_catalog.pg_class c on c.oid = l.relation
    join pg_catalog.pg_namespace n on n.oid = c.relnamespace
    where l.database = (select oid from pg_catalog.pg_database where datname = current_database())
      and n.nspname = $1::text and c.relname ^@ ($2::text || 'outbox')
),
waiting as (
    select l.pid, min(l.waitstart) as since
    from pg_catalog.pg_locks l
    where not l.granted and l.pid in (select u.pid from used u)
    group by l.pid
),
found as (
    select w.pid as waiter, w.since, b.pid as holder, b.pid in (select pid from waiting) as waits_too
    from waiting w cross join lateral unnest(pg_catalog.pg_blocking_pids(w.pid)) as b (pid)
)
select f.waiter::text, mine.usename::text, mine.application_name,
       greatest(extract(epoch from clock_timestamp() - f.since) * 1000, 0)::bigint::text,
       f.holder::text, held.usename::text, held.application_name, host(held.client_addr), held.state,
       (extract(epoch from held.xact_start) * 1000000)::bigint::text
from (
    select f.* from found f
    union all
    select distinct null::integer, null::timestamptz, u.pid, null::boolean
    from used u
    where u.keeps_off and u.pid <> pg_backend_pid() and u.pid not in (select holder from found)
) f
left join pg_catalog.pg_stat_activity mine on mine.pid = f.waiter
left join pg_catalog.pg_stat_activity held on held.pid = f.holder
order by f.waits_too nulls last, f.since, f.waiter, f.holder
limit 20
