-- Writes into the history of messages what an operator is about to do to them.
-- seqs, action, who, why
insert into /*:*/outbox_history (seq, at, action, by_whom, why, attempts, lease_losses, last_error)
select o.seq, utc_timestamp(6), v.action, v.by_whom, v.why, o.attempts, o.lease_losses, o.last_error
from (select ? as seqs, ? as action, ? as by_whom, ? as why) v
straight_join json_table(v.seqs, '$[*]' columns (seq bigint path '$')) s
straight_join /*:*/outbox o on o.seq = s.seq
