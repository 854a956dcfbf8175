-- Those of these messages that are stored.
-- seqs as a JSON array
select o.seq
from json_table(?, '$[*]' columns (seq bigint path '$')) s
straight_join /*:*/outbox o force index (primary) on o.seq = s.seq
