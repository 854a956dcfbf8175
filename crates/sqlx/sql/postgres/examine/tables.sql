-- Our tables, and whether they are logged: p, or not: u.
-- $1 schema, $2 prefix
select c.relname::text, c.relpersistence::text
from pg_catalog.pg_class c
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where n.nspname = $1::text and c.relkind in ('r', 'p') and c.relname ^@ ($2::text || 'outbox')
order by c.relname
