-- The tables of users that have any rows, quoted.
select c.oid::regclass::text
from pg_class c
where c.relkind = 'r' and c.relnamespace not in ('pg_catalog'::regnamespace, 'information_schema'::regnamespace)
  and c.relpersistence = 'p' and pg_relation_size(c.oid) > 0
