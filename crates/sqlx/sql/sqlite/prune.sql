-- Deletes messages.
-- ?1 seqs
delete from /*:*/outbox where seq in (select value from json_each(?1))
