-- How many messages are in which state, counted up to a cap along the indexes, so that a look at a long queue costs no
-- more than one at a short one.
-- ?1 cap
with recursive
clock (now) as (select cast((julianday('now') - 2440587.5) * 86400000000 as integer)),
topics (topic) as (
    select min(topic) from /*:*/outbox where state = 0 and lease_losses = 0 and waiting = 0
    union all
    select (select min(o.topic) from /*:*/outbox o
            where o.state = 0 and o.lease_losses = 0 and o.waiting = 0 and o.topic > t.topic)
    from topics t where t.topic is not null
),
priorities (topic, priority) as (
    select t.topic, (select min(o.priority) from /*:*/outbox o
                     where o.state = 0 and o.lease_losses = 0 and o.waiting = 0 and o.topic = t.topic)
    from topics t where t.topic is not null
    union all
    select p.topic, (select min(o.priority) from /*:*/outbox o
                     where o.state = 0 and o.lease_losses = 0 and o.waiting = 0
                       and o.topic = p.topic and o.priority > p.priority)
    from priorities p where p.priority is not null
),
ready (due_at) as (
    select o.due_at from clock cross join priorities p cross join /*:*/outbox o indexed by /*+*/outbox_ready
    where o.state = 0 and o.lease_losses = 0 and o.waiting = 0 and o.topic = p.topic and o.priority = p.priority
      and o.due_at <= clock.now
    union all
    select o.due_at from clock cross join /*:*/outbox o indexed by /*+*/outbox_suspect
    where o.state = 0 and o.lease_losses > 0 and o.waiting = 0 and o.due_at <= clock.now
    union all
    select o.due_at from clock cross join /*:*/outbox o indexed by /*+*/outbox_waiting
    where o.state = 0 and o.waiting = 1 and o.due_at <= clock.now
),
scheduled (due_at) as (
    select o.due_at from clock cross join priorities p cross join /*:*/outbox o indexed by /*+*/outbox_ready
    where o.state = 0 and o.lease_losses = 0 and o.waiting = 0 and o.topic = p.topic and o.priority = p.priority
      and o.due_at > clock.now and o.due_at < 9223372036854775807
    union all
    select o.due_at from clock cross join /*:*/outbox o indexed by /*+*/outbox_suspect
    where o.state = 0 and o.lease_losses > 0 and o.waiting = 0
      and o.due_at > clock.now and o.due_at < 9223372036854775807
    union all
    select o.due_at from clock cross join /*:*/outbox o indexed by /*+*/outbox_waiting
    where o.state = 0 and o.waiting = 1 and o.due_at > clock.now and o.due_at < 9223372036854775807
),
parked (due_at) as (
    select o.due_at from priorities p cross join /*:*/outbox o indexed by /*+*/outbox_ready
    where o.state = 0 and o.lease_losses = 0 and o.waiting = 0 and o.topic = p.topic and o.priority = p.priority
      and o.due_at = 9223372036854775807
    union all
    select o.due_at from /*:*/outbox o indexed by /*+*/outbox_suspect
    where o.state = 0 and o.lease_losses > 0 and o.waiting = 0 and o.due_at = 9223372036854775807
    union all
    select o.due_at from /*:*/outbox o indexed by /*+*/outbox_waiting
    where o.state = 0 and o.waiting = 1 and o.due_at = 9223372036854775807
)
select
    (select count(*) from (select 1 from ready limit ?1)) as ready,
    (select count(*) from (select 1 from scheduled limit ?1)) as scheduled,
    (select count(*) from (select 1 from parked limit ?1)) as parked,
    (select count(*) from (select 1 from /*:*/outbox where state = 1 limit ?1)) as leased,
    (select count(*) from (select 1 from /*:*/outbox where state = 2 limit ?1)) as done,
    (select count(*) from (select 1 from /*:*/outbox where state = 3 limit ?1)) as dead,
    (select clock.now - min(first.due_at) from clock, (
        select (select min(o.due_at) from /*:*/outbox o
                where o.state = 0 and o.lease_losses = 0 and o.waiting = 0
                  and o.topic = p.topic and o.priority = p.priority) as due_at
        from priorities p where p.priority is not null
        union all
        select min(due_at) from /*:*/outbox where state = 0 and lease_losses > 0 and waiting = 0
        union all
        select min(due_at) from /*:*/outbox where state = 0 and waiting = 1
     ) first
     where first.due_at <= clock.now) as oldest,
    (select count(*) from (
        select 1 from clock cross join /*:*/outbox o indexed by /*+*/outbox_failing
        where o.state = 0 and o.error_class in (2, 3) and o.due_at > clock.now and o.due_at < 9223372036854775807
        limit ?1)) as failing,
    (select clock.now - o.failing_since from clock cross join /*:*/outbox o indexed by /*+*/outbox_failing
     where o.state = 0 and o.error_class in (2, 3) and o.due_at > clock.now and o.due_at < 9223372036854775807
     order by o.failing_since limit 1) as oldest_failing
