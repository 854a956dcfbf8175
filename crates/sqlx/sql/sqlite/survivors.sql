-- Which of these leased messages the caller's own transaction sees.
-- ?1 leases: [[seq, epoch], ..]
select o.seq is not null
from json_each(?1) a left join /*:*/outbox o on o.seq = json_extract(a.value, '$[0]') and o.epoch = json_extract(a.value, '$[1]') and o.state = 1
order by a.key
