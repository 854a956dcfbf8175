-- Writes the statement that copies one message ($1 copies of one in the state $2): all columns as they are, apart from those that
-- the database numbers itself, from the id, which is new and grows with the time as real ones do, a hundred to a millisecond, and from
-- the due time, which grows by a microsecond.
select format('insert into posthaste.outbox (%s) select %s from (select * from posthaste.outbox where state = $2 limit 1) o, '
              'generate_series(1, $1::bigint) n',
              string_agg(quote_ident(column_name), ', ' order by ordinal_position),
              string_agg(case column_name
                             when 'message_id' then
                                 '(lpad(to_hex((''x'' || left(replace(o.message_id::text, ''-'', ''''), 12))::bit(48)::bigint'
                                 ' + n / 100), 12, ''0'') || ''7'' || lpad(to_hex(n % 100), 3, ''0'') || ''8'''
                                 ' || substr(md5(random()::text), 1, 15))::uuid'
                             when 'due_at' then 'o.due_at + n * interval ''1 microsecond'''
                             else 'o.' || quote_ident(column_name)
                         end, ', ' order by ordinal_position))
from information_schema.columns
where table_schema = 'posthaste' and table_name = 'outbox' and is_identity = 'NO' and is_generated = 'NEVER'
