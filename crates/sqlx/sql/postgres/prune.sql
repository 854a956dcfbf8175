-- Deletes messages.
-- $1 seqs
delete from /*:*/outbox where seq = any($1::bigint[])
