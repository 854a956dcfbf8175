-- Deletes the history of messages.
-- ?1 seqs
delete from /*:*/outbox_history where seq in (select value from json_each(?1))
