-- The indexes of our tables, and whether they can be used: one whose making was cut short is there, but is not.
-- $1 schema, $2 prefix
select i.relname::text, case when x.indisvalid and x.indisready then 'valid' else 'invalid' end
from pg_catalog.pg_index x
join pg_catalog.pg_class i on i.oid = x.indexrelid
join pg_catalog.pg_class c on c.oid = x.indrelid
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where n.nspname = $1::text and c.relname ^@ ($2::text || 'outbox')
