-- Makes what was parked behind these rows due again.
-- $1 seqs, $2 keys
update /*:*/outbox o
set due_at = statement_timestamp(), born = null
from unnest($1::bigint[], $2::text[]) as h (seq, key)
where o.key = h.key and o.seq > h.seq and o.state = 0 and o.due_at = 'infinity'
