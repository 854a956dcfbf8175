-- Deletes messages.
-- seqs
delete o from json_table(?, '$[*]' columns (seq bigint path '$')) s straight_join /*:*/outbox o on o.seq = s.seq
