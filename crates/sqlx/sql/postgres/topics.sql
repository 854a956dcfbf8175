-- The same by topic, of the first messages of each state.
-- $1 cap
with leased (items) as materialized (
    select /*:*/leased()
)
select topic, state, count(*) as count
from (
    (select topic, state from /*:*/outbox where state = 0 and born is not null and not (select items from leased) operator(pg_catalog.@>) seq
     limit $1)
    union all
    (select topic, state from /*:*/outbox
     where state = 0 and born is null and lease_losses = 0 and not (select items from leased) operator(pg_catalog.@>) seq
     limit $1)
    union all
    (select topic, state from /*:*/outbox where state = 0 and lease_losses > 0 and not (select items from leased) operator(pg_catalog.@>) seq
     limit $1)
    union all
    (select topic, 1::smallint
     from (
         (select topic from /*:*/outbox where state = 1 limit $1)
         union all
         (select o.topic
          from leased cross join lateral pg_catalog.unnest(items) i
          cross join lateral (select topic from /*:*/outbox
                              where seq >= pg_catalog.lower(i) and seq < pg_catalog.upper(i) and state = 0) o
          limit $1)
     ) l
     limit $1)
    union all
    (select topic, state from /*:*/outbox where state = 3 limit $1)
) t
group by topic, state
order by topic, state
