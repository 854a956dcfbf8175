-- Takes messages that can start now.
--
-- The index outbox_ready serves it: one range (priority, due_at <= now) per priority that occurs, in the order of the
-- answer, so that neither scheduled nor finished messages are walked, and outbox_key answers whether it is a message's
-- turn in its key. `cross join` keeps the priorities outside and the index inside, which is the order wanted: an
-- `order by` would sort all that is due for the sake of a few. One statement takes the write lock before it reads. That nothing
-- is paused is found out once.
-- ?1 worker, ?2 limit, ?3 lease (µs), ?4 topics (null with ?5 null: all), ?5 beginnings of topics
with recursive
clock (now) as (select cast((julianday('now') - 2440587.5) * 86400000000 as integer)),
priorities (priority) as (
    select min(priority) from /*:*/outbox where state = 0 and lease_losses = 0
    union all
    select (select min(o.priority) from /*:*/outbox o
            where o.state = 0 and o.lease_losses = 0 and o.priority > p.priority)
    from priorities p where p.priority is not null
),
-- A suspect is taken alone, so that no neighbour is blamed if it kills this worker, too: after the clean ones, but before
-- them once it has waited for longer than the lease, so that a steady load cannot starve it.
suspect (seq, overdue) as materialized (
    select o.seq, o.due_at < clock.now - ?3
    from clock cross join /*:*/outbox o indexed by /*+*/outbox_suspect
    where o.state = 0 and o.lease_losses > 0 and o.due_at <= clock.now
      and (o.expires_at is null or o.expires_at > clock.now)
      and ((?4 is null and ?5 is null) or o.topic in (select value from json_each(?4))
           or exists (select 1 from json_each(?5) b where substr(o.topic, 1, length(b.value)) = b.value))
      and (not exists (select 1 from /*:*/outbox_pause) or not exists (
          select 1 from /*:*/outbox_pause p
          where p.topics = o.topic
             or (p.topics like '%*' and substr(o.topic, 1, length(p.topics) - 1)
                 = substr(p.topics, 1, length(p.topics) - 1))))
      and (o.key is null or not exists (
          select 1 from /*:*/outbox e
          where e.key = o.key and e.seq < o.seq
            and (e.state in (0, 1) or (e.state = 3 and e.order_policy <> 2 and e.error_class not in (6, 8)))))
    order by o.priority, o.due_at, o.seq
    limit 1
),
clean (seq) as materialized (
    select o.seq
    from clock cross join priorities p cross join /*:*/outbox o indexed by /*+*/outbox_ready
    where not exists (select 1 from suspect where overdue)
      and o.state = 0 and o.lease_losses = 0 and o.priority = p.priority and o.due_at <= clock.now
      and (o.expires_at is null or o.expires_at > clock.now)
      and ((?4 is null and ?5 is null) or o.topic in (select value from json_each(?4))
           or exists (select 1 from json_each(?5) b where substr(o.topic, 1, length(b.value)) = b.value))
      and (not exists (select 1 from /*:*/outbox_pause) or not exists (
          select 1 from /*:*/outbox_pause p
          where p.topics = o.topic
             or (p.topics like '%*' and substr(o.topic, 1, length(p.topics) - 1)
                 = substr(p.topics, 1, length(p.topics) - 1))))
      and (o.key is null or not exists (
          select 1 from /*:*/outbox e
          where e.key = o.key and e.seq < o.seq
            and (e.state in (0, 1) or (e.state = 3 and e.order_policy <> 2 and e.error_class not in (6, 8)))))
    limit ?2
)
update /*:*/outbox
set state = 1, epoch = epoch + 1, worker = ?1,
    leased_until = cast((julianday('now') - 2440587.5) * 86400000000 as integer) + ?3
where seq in (
    select seq from clean
    union all
    select seq from suspect where overdue or not exists (select 1 from clean)
)
returning seq, epoch, message_id, topic, key, order_policy, payload, content_type, headers, correlation_id,
          aggregate_type, aggregate_id, tenant_id, priority, attempts, lease_losses, occurred_at, created_at, due_at,
          expires_at, failing_since, handled
