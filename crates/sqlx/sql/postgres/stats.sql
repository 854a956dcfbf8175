-- How many messages are in which state, counted up to a cap along the indexes, so that a look at a long queue costs no
-- more than one at a short one.
-- $1 cap
with recursive
leased (items) as materialized (
    select /*:*/leased()
),
priorities (priority) as (
    (select priority from /*:*/outbox where state = 0 and born is not null order by priority limit 1)
    union all
    select (select o.priority from /*:*/outbox o
            where o.state = 0 and o.born is not null and o.priority > p.priority
            order by o.priority limit 1)
    from priorities p where p.priority is not null
),
ready as materialized (
    select r.due_at
    from priorities p cross join lateral (
        select o.due_at from /*:*/outbox o
        where o.state = 0 and o.born is not null and o.priority = p.priority and o.due_at <= statement_timestamp()
          and not (select items from leased) operator(pg_catalog.@>) o.seq
        order by o.born, o.seq + 0
        limit $1
    ) r
    union all
    (select due_at from /*:*/outbox
     where state = 0 and born is null and lease_losses = 0 and due_at <= statement_timestamp()
       and not (select items from leased) operator(pg_catalog.@>) seq
     order by due_at, seq
     limit $1)
    union all
    (select due_at from /*:*/outbox
     where state = 0 and lease_losses > 0 and due_at <= statement_timestamp()
       and not (select items from leased) operator(pg_catalog.@>) seq
     limit $1)
),
scheduled as (
    (select due_at from /*:*/outbox
     where state = 0 and born is null and lease_losses = 0 and due_at > statement_timestamp() and due_at < 'infinity' limit $1)
    union all
    (select due_at from /*:*/outbox
     where state = 0 and lease_losses > 0 and due_at > statement_timestamp() and due_at < 'infinity' limit $1)
),
parked as (
    (select due_at from /*:*/outbox where state = 0 and born is null and lease_losses = 0 and due_at = 'infinity' limit $1)
    union all
    (select due_at from /*:*/outbox where state = 0 and lease_losses > 0 and due_at = 'infinity' limit $1)
),
done as (
    select count(*) as counted from (select from /*:*/outbox where state = 2 limit $1) d
)
select
    least($1, (select count(*) from ready)) as ready,
    least($1, (select count(*) from scheduled)) as scheduled,
    least($1, (select count(*) from parked)) as parked,
    least($1, (select count(*) from (select from /*:*/outbox where state = 1 limit $1) l)
              + (select count(*) from (
                     select from leased cross join lateral pg_catalog.unnest(items) i
                     cross join lateral (select from /*:*/outbox
                                         where seq >= pg_catalog.lower(i) and seq < pg_catalog.upper(i) and state = 0) o
                     limit $1) c)) as leased,
    -- Beyond the cap, what vacuum last counted in the index of done messages.
    (select case when counted < $1 then counted
                 else greatest(counted, (select reltuples::bigint from pg_class
                                         where oid = to_regclass('/*:*/outbox_done'))) end
     from done) as done,
    (select count(*) from (select from /*:*/outbox where state = 3 limit $1) d) as dead,
    (select (extract(epoch from statement_timestamp() - min(due_at)) * 1000000::numeric)::bigint from ready) as oldest,
    (select count(*) from (
        select from /*:*/outbox where state = 0 and error_class in (2, 3) and due_at > statement_timestamp() and due_at < 'infinity'
        limit $1) f) as failing,
    (select (extract(epoch from statement_timestamp() - failing_since) * 1000000::numeric)::bigint from /*:*/outbox
     where state = 0 and error_class in (2, 3) and due_at > statement_timestamp() and due_at < 'infinity'
     order by failing_since, seq limit 1) as oldest_failing
