-- Records in the order of enqueueing; whatever parameter is null does not matter.
-- $1 after this seq, $2 state, $3 topics (null with $4 null: all), $4 beginnings of topics, $5 key, $6 tenant,
-- $7 correlation id, $8 failure class, $9 created from (µs), $10 created before (µs), $11 ids, $12 limit
select seq, epoch, message_id, topic, key, order_policy, payload, content_type, headers, correlation_id, aggregate_type,
       aggregate_id, tenant_id, priority, attempts, lease_losses, occurred_at, created_at, due_at, expires_at,
       failing_since, handled, state, due_at = 'infinity' as parked, leased_until, worker, done_at, done_by, error_class,
       last_error
from /*:*/outbox
where seq > $1::bigint
  and ($2::smallint is null or state = $2)
  and (($3::text[] is null and $4::text[] is null) or topic = any($3::text[]) or topic ^@ any($4::text[]))
  and ($5::text is null or key = $5)
  and ($6::text is null or tenant_id = $6)
  and ($7::text is null or correlation_id = $7)
  and ($8::smallint is null or error_class = $8)
  and ($9::bigint is null or created_at >= timestamptz 'epoch' + $9 * interval '1 microsecond')
  and ($10::bigint is null or created_at < timestamptz 'epoch' + $10 * interval '1 microsecond')
  and ($11::uuid[] is null or message_id = any($11))
order by seq
limit $12
