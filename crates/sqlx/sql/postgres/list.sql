-- Records in the order of enqueueing; whatever parameter is null does not matter. What is in a lease is shown as its lease
-- says.
-- $1 after this seq, $2 state, $3 topics (null with $4 null: all), $4 beginnings of topics, $5 key, $6 tenant,
-- $7 correlation id, $8 failure class, $9 created from (µs), $10 created before (µs), $11 ids, $12 limit
with leased as materialized (
    select /*:*/leased() as items
)
select o.seq, coalesce(l.token, o.epoch) as epoch, o.message_id, o.topic, o.key, o.order_policy, o.payload,
       o.content_type, o.headers, o.correlation_id, o.aggregate_type, o.aggregate_id, o.tenant_id, o.priority, o.attempts,
       o.lease_losses, o.occurred_at, o.created_at, o.due_at, o.expires_at, o.failing_since, o.handled,
       case when l.id is not null then 1::smallint else o.state end as state, o.due_at = 'infinity' as parked,
       greatest(o.leased_until, l.leased_until) as leased_until, coalesce(o.worker, l.worker) as worker, o.done_at,
       o.done_by, o.error_class, o.last_error
from /*:*/outbox o
left join lateral (
    select id, leased_until, worker, token from /*:*/outbox_lease l
    where ((o.state = 0 and o.epoch <> l.token) or (o.state = 1 and o.epoch = l.token))
      and (select items from leased) @> o.seq and l.items @> o.seq limit 1
) l on true
where o.seq > $1::bigint
  and case $2::smallint when 0 then o.state = 0 and not (select items from leased) @> o.seq
                        when 1 then o.state = 1 or (o.state = 0 and (select items from leased) @> o.seq)
                        else $2 is null or o.state = $2 end
  -- What is leased is found by its number: it may be a few of millions.
  and ($2 is distinct from 1 or o.seq = any(array(
      select q.seq from /*:*/outbox q where q.state = 1 and q.seq > $1
      union all
      select s from leased cross join lateral unnest(items) i cross join lateral generate_series(lower(i), upper(i) - 1) s)))
  and (($3::text[] is null and $4::text[] is null) or o.topic = any($3::text[]) or o.topic ^@ any($4::text[]))
  and ($5::text is null or o.key = $5)
  and ($6::text is null or o.tenant_id = $6)
  and ($7::text is null or o.correlation_id = $7)
  and ($8::smallint is null or o.error_class = $8)
  and ($9::bigint is null or o.created_at >= timestamptz 'epoch' + $9::float8 * interval '1 microsecond')
  and ($10::bigint is null or o.created_at < timestamptz 'epoch' + $10::float8 * interval '1 microsecond')
  and ($11::uuid[] is null or o.message_id = any($11))
order by o.seq
limit $12
