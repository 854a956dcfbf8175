-- The highest seq that is taken, the last one that was given out, and the statement that brings the two together. Of a sequence
-- that this role may not read nothing is known, and nothing is wrong.
select m.taken::text, coalesce(pg_catalog.pg_sequence_last_value(s.sequence), 0)::text,
       pg_catalog.format('select setval(%L, %s)', s.sequence, m.taken)
from (select pg_catalog.pg_get_serial_sequence('/*:*/outbox', 'seq')::regclass as sequence) s
cross join (select coalesce(max(seq), 0) as taken from /*:*/outbox) m
where pg_catalog.has_sequence_privilege(s.sequence, 'usage, select')
