-- The indexes of our tables; each of them can be used.
-- schema or null, prefix
select distinct cast(s.index_name as char), 'valid'
from information_schema.statistics s
join (select ? as schema_name, concat(?, 'outbox') as beginning) our
where s.table_schema = coalesce(our.schema_name, database())
  and left(s.table_name, char_length(our.beginning)) = our.beginning
