-- Takes messages that can start now.
--
-- The index outbox_ready serves it: one range (priority, due_at <= now) per priority that occurs, in the order of the
-- answer, so that neither scheduled nor finished messages are walked, and outbox_key answers whether it is a message's
-- turn in its key. The rows are locked in a materialised part before they are changed: the shorter form, an update
-- with `in (select .. limit n for update skip locked)`, may take more than n under a nested loop. They are changed by an
-- array of their numbers: a join may be planned as a walk along the whole primary key. What is paused is read once, into arrays:
-- an anti-join could be planned from the other side.
-- $1 worker, $2 limit, $3 lease, $4 topics (null with $5 null: all), $5 beginnings of topics
with recursive
priorities (priority) as (
    (select priority from /*:*/outbox where state = 0 and lease_losses = 0 order by priority limit 1)
    union all
    select (select o.priority from /*:*/outbox o
            where o.state = 0 and o.lease_losses = 0 and o.priority > p.priority
            order by o.priority limit 1)
    from priorities p where p.priority is not null
),
-- A suspect is taken alone, so that no neighbour is blamed if it kills this worker, too: after the clean ones, but before
-- them once it has waited for longer than the lease, so that a steady load cannot starve it.
suspect as materialized (
    select o.seq, o.due_at < statement_timestamp() - $3::interval as overdue
    from /*:*/outbox o
    where o.state = 0 and o.lease_losses > 0 and o.due_at <= statement_timestamp()
      and (o.expires_at is null or o.expires_at > statement_timestamp())
      and (($4::text[] is null and $5::text[] is null) or o.topic = any($4::text[]) or o.topic ^@ any($5::text[]))
      and not (o.topic = any(array(select p.topics from /*:*/outbox_pause p where p.topics not like '%*'))
               or o.topic ^@ any(array(select left(p.topics, -1) from /*:*/outbox_pause p where p.topics like '%*')))
      and (o.key is null or not exists (
          select from /*:*/outbox e
          where e.key = o.key and e.seq < o.seq
            and (e.state in (0, 1) or (e.state = 3 and e.order_policy <> 2 and e.error_class not in (6, 8)))))
    order by o.priority, o.due_at, o.seq
    limit 1
    for update skip locked
),
clean as materialized (
    select due.seq
    from priorities p
    cross join lateral (
        select o.seq from /*:*/outbox o
        where o.state = 0 and o.lease_losses = 0 and o.priority = p.priority and o.due_at <= statement_timestamp()
          and (o.expires_at is null or o.expires_at > statement_timestamp())
          and (($4::text[] is null and $5::text[] is null) or o.topic = any($4::text[]) or o.topic ^@ any($5::text[]))
          and not (o.topic = any(array(select p.topics from /*:*/outbox_pause p where p.topics not like '%*'))
                   or o.topic ^@ any(array(select left(p.topics, -1) from /*:*/outbox_pause p where p.topics like '%*')))
          and (o.key is null or not exists (
              select from /*:*/outbox e
              where e.key = o.key and e.seq < o.seq
                and (e.state in (0, 1) or (e.state = 3 and e.order_policy <> 2 and e.error_class not in (6, 8)))))
        order by o.due_at, o.seq
        limit $2
        for update skip locked
    ) due
    where p.priority is not null and not exists (select from suspect where overdue)
    limit $2
),
taken as (
    update /*:*/outbox o
    set state = 1, epoch = o.epoch + 1, worker = $1::text, leased_until = statement_timestamp() + $3::interval
    where o.seq = any(array(
        select seq from clean
        union all
        select seq from suspect where overdue or not exists (select from clean)))
    returning o.*
)
select seq, epoch, message_id, topic, key, order_policy, payload, content_type, headers, correlation_id, aggregate_type,
       aggregate_id, tenant_id, priority, attempts, lease_losses, occurred_at, created_at, due_at, expires_at,
       failing_since, handled
from taken
order by priority, due_at, seq
