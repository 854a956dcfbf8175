-- Those of these messages that no other session keeps locked.
-- seqs as a JSON array
select o.seq
from json_table(?, '$[*]' columns (seq bigint path '$')) s
straight_join /*:*/outbox o force index (primary) on o.seq = s.seq
for update skip locked
