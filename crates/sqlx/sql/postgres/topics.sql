-- The same by topic, of the first messages of each state.
-- $1 cap
with leased (items) as materialized (
    select /*:*/leased()
)
select topic, state, count(*) as count
from (
    (select topic, state from /*:*/outbox where state = 0 and lease_losses = 0 and not (select items from leased) operator(pg_catalog.@>) seq
     limit $1)
    union all
    (select topic, state from /*:*/outbox where state = 0 and lease_losses > 0 and not (select items from leased) operator(pg_catalog.@>) seq
     limit $1)
    union all
    (select topic, 1::smallint from /*:*/outbox
     where seq = any(array(
         (select seq from /*:*/outbox where state = 1 limit $1)
         union all
         (select s from leased cross join lateral pg_catalog.unnest(items) i
                   cross join lateral generate_series(pg_catalog.lower(i), pg_catalog.upper(i) - 1) s limit $1)))
     limit $1)
    union all
    (select topic, state from /*:*/outbox where state = 3 limit $1)
) t
group by topic, state
order by topic, state
