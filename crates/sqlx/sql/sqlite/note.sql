-- Writes into the history of messages what an operator is about to do to them.
-- ?1 seqs, ?2 action, ?3 who, ?4 why
insert into /*:*/outbox_history (seq, at, action, by_whom, why, attempts, lease_losses, last_error)
select seq, cast((julianday('now') - 2440587.5) * 86400000000 as integer), ?2, ?3, ?4, attempts, lease_losses, last_error
from /*:*/outbox where seq in (select value from json_each(?1))
order by seq
