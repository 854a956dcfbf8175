-- Tells for each lease whether it is still held (0 applied, 1 lost, 2 gone), and then lets those last from now, in the
-- one transaction that its caller holds.
-- ?1 leases: [[seq, epoch], ..], ?2 lease (µs)
select case when o.seq is null then 2 when o.state = 1 and o.epoch = json_extract(a.value, '$[1]') then 0 else 1 end
from json_each(?1) a left join /*:*/outbox o on o.seq = json_extract(a.value, '$[0]')
order by a.key;

-- `+state`: by their numbers, not by walking all that is leased.
update /*:*/outbox
set leased_until = cast((julianday('now') - 2440587.5) * 86400000000 as integer) + ?2
where +state = 1 and (seq, epoch) in (select json_extract(a.value, '$[0]'), json_extract(a.value, '$[1]') from json_each(?1) a)
