-- Writes into the history of messages what an operator is about to do to them.
-- $1 seqs, $2 action, $3 who, $4 why
insert into /*:*/outbox_history (seq, at, action, by_whom, why, attempts, lease_losses, last_error)
select seq, statement_timestamp(), $2, $3, $4, attempts, lease_losses, last_error
from /*:*/outbox where seq = any($1::bigint[])
order by seq
