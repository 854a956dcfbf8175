-- Makes what was parked behind these rows due again.
-- ?1 seqs, ?2 keys
update /*:*/outbox as o
set due_at = cast((julianday('now') - 2440587.5) * 86400000000 as integer)
from json_each(?1) s, json_each(?2) k
where k.key = s.key and o.key = k.value and o.seq > s.value and o.state = 0 and o.due_at = 9223372036854775807
