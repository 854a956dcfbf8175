-- Takes messages that can start now. It reads what it may take, and for each topic the one behind that: ADR 0035.
--
-- `cross join` keeps the order in which tables are read, and a limit ends a recursion: an `order by` outside would read all that is due
-- for the sake of a few. One statement takes the write lock before it reads.
-- ?1 worker, ?2 limit, ?3 lease (µs), ?4 topics (null with ?5 null: all), ?5 beginnings of topics
with recursive
clock (now) as (select cast((julianday('now') - 2440587.5) * 86400000000 as integer)),
beginnings (beginning) as (
    select value from json_each(?5)
    union all
    select '' where ?4 is null and ?5 is null
),
-- From topic to topic for each beginning, up to the first that begins otherwise.
found (beginning, topic) as (
    select beginning, (
        select min(o.topic) from /*:*/outbox o indexed by /*+*/outbox_ready
        where o.state = 0 and o.lease_losses = 0 and o.waiting = 0 and o.topic >= beginning)
    from beginnings
    union all
    select f.beginning, (
        select min(o.topic) from /*:*/outbox o indexed by /*+*/outbox_ready
        where o.state = 0 and o.lease_losses = 0 and o.waiting = 0 and o.topic > f.topic)
    from found f where substr(f.topic, 1, length(f.beginning)) = f.beginning
),
topics (topic) as (
    select value from json_each(?4)
    union
    select topic from found where substr(topic, 1, length(beginning)) = beginning
),
-- The messages of all these topics, merged by priority, due time and enqueueing: the first of each topic, and behind each one the
-- next of its topic. What is not due yet is passed together with the rest of its priority. Not materialized: only as far as `clean` reads.
line (topic, priority, due_at, seq) as not materialized (
    select o.topic, o.priority, o.due_at, o.seq
    from topics t cross join /*:*/outbox o on o.seq = (
        select i.seq from /*:*/outbox i indexed by /*+*/outbox_ready
        where i.state = 0 and i.lease_losses = 0 and i.waiting = 0 and i.topic = t.topic
        order by i.priority, i.due_at, i.seq
        limit 1)
    where not exists (
        select 1 from /*:*/outbox_pause p
        where p.topics = t.topic
           or (p.topics like '%*' and substr(t.topic, 1, length(p.topics) - 1)
               = substr(p.topics, 1, length(p.topics) - 1)))
    union all
    select o.topic, o.priority, o.due_at, o.seq
    from line l cross join clock cross join /*:*/outbox o on o.seq = coalesce((
        select i.seq from /*:*/outbox i indexed by /*+*/outbox_ready
        where l.due_at <= clock.now and i.state = 0 and i.lease_losses = 0 and i.waiting = 0
          and i.topic = l.topic and i.priority = l.priority and i.due_at = l.due_at and i.seq > l.seq
        order by i.seq
        limit 1
    ), (
        select i.seq from /*:*/outbox i indexed by /*+*/outbox_ready
        where l.due_at <= clock.now and i.state = 0 and i.lease_losses = 0 and i.waiting = 0
          and i.topic = l.topic and i.priority = l.priority and i.due_at > l.due_at and i.due_at <= clock.now
        order by i.due_at, i.seq
        limit 1
    ), (
        select i.seq from /*:*/outbox i indexed by /*+*/outbox_ready
        where i.state = 0 and i.lease_losses = 0 and i.waiting = 0 and i.topic = l.topic and i.priority > l.priority
        order by i.priority, i.due_at, i.seq
        limit 1
    ))
    order by 2, 3, 4
),
-- The topics and priorities that suspects have.
suspects (topic, priority) as (
    select o.topic, o.priority
    from /*:*/outbox o
    where o.seq = (
        select i.seq from /*:*/outbox i indexed by /*+*/outbox_suspect
        where i.state = 0 and i.lease_losses > 0 and i.waiting = 0
        order by i.topic, i.priority
        limit 1)
    union all
    select o.topic, o.priority
    from suspects s cross join /*:*/outbox o on o.seq = coalesce((
        select i.seq from /*:*/outbox i indexed by /*+*/outbox_suspect
        where i.state = 0 and i.lease_losses > 0 and i.waiting = 0 and i.topic = s.topic and i.priority > s.priority
        order by i.priority
        limit 1
    ), (
        select i.seq from /*:*/outbox i indexed by /*+*/outbox_suspect
        where i.state = 0 and i.lease_losses > 0 and i.waiting = 0 and i.topic > s.topic
        order by i.topic, i.priority
        limit 1
    ))
),
-- A suspect is taken alone, so that no neighbour is blamed if it kills this worker, too: after the clean ones, but before
-- them once it has waited for longer than the lease, so that a steady load cannot starve it.
suspect (seq, overdue) as materialized (
    select o.seq, o.due_at < clock.now - ?3
    from suspects s cross join clock cross join /*:*/outbox o on o.seq = (
        select i.seq from /*:*/outbox i indexed by /*+*/outbox_suspect
        where i.state = 0 and i.lease_losses > 0 and i.waiting = 0
          and i.topic = s.topic and i.priority = s.priority and i.due_at <= clock.now
          and (i.expires_at is null or i.expires_at > clock.now)
          and (i.key is null or not exists (
              select 1 from /*:*/outbox e
              where e.key = i.key and e.seq < i.seq
                and (e.state in (0, 1) or (e.state = 3 and e.order_policy <> 2 and e.error_class not in (6, 8)))))
        order by i.due_at, i.seq
        limit 1)
    where ((?4 is null and ?5 is null) or s.topic in (select value from json_each(?4))
           or exists (select 1 from json_each(?5) b where substr(s.topic, 1, length(b.value)) = b.value))
      and not exists (
          select 1 from /*:*/outbox_pause p
          where p.topics = s.topic
             or (p.topics like '%*' and substr(s.topic, 1, length(p.topics) - 1)
                 = substr(p.topics, 1, length(p.topics) - 1)))
    order by o.priority, o.due_at, o.seq
    limit 1
),
clean (seq) as materialized (
    select o.seq
    from line l cross join clock cross join /*:*/outbox o on o.seq = l.seq
    where l.due_at <= clock.now and (o.expires_at is null or o.expires_at > clock.now)
      -- Again: a message that was requeued is in front of one that does not wait.
      and (o.key is null or not exists (
          select 1 from /*:*/outbox e
          where e.key = o.key and e.seq < o.seq
            and (e.state in (0, 1) or (e.state = 3 and e.order_policy <> 2 and e.error_class not in (6, 8)))))
    limit case when exists (select 1 from suspect where overdue) then 0 else ?2 end
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
