-- Which of these leased messages the caller's own transaction sees. Without a lock: they are its own.
-- leases: [[seq, epoch], ..]
select o.seq is not null
from json_table(?, '$[*]' columns (n for ordinality, seq bigint path '$[0]', epoch int path '$[1]')) a
left join /*:*/outbox o force index (primary) on o.seq = a.seq and o.epoch = a.epoch and o.state = 1
order by a.n
