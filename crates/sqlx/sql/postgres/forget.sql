-- Deletes the history of messages.
-- $1 seqs
delete from /*:*/outbox_history where seq = any($1::bigint[])
