-- Deletes the history of messages.
-- seqs
delete h from json_table(?, '$[*]' columns (seq bigint path '$')) s
straight_join /*:*/outbox_history h on h.seq = s.seq
