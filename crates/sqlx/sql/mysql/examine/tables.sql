-- Our tables, and their engines.
-- schema or null, prefix
select cast(t.table_name as char), cast(t.engine as char)
from information_schema.tables t
join (select ? as schema_name, concat(?, 'outbox') as beginning) our
where t.table_schema = coalesce(our.schema_name, database())
  and left(t.table_name, char_length(our.beginning)) = our.beginning
order by t.table_name
