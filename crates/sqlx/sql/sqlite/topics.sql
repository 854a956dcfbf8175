-- The same by topic, of the first messages of each state.
-- ?1 cap
select topic, state, count(*) as count
from (
    select * from (select topic, state from /*:*/outbox where state = 0 and lease_losses = 0 and waiting = 0 limit ?1)
    union all
    select * from (select topic, state from /*:*/outbox where state = 0 and lease_losses > 0 and waiting = 0 limit ?1)
    union all
    select * from (select topic, state from /*:*/outbox where state = 0 and waiting = 1 limit ?1)
    union all
    select * from (select topic, state from /*:*/outbox where state = 1 limit ?1)
    union all
    select * from (select topic, state from /*:*/outbox where state = 3 limit ?1)
)
group by topic, state
order by topic, state
