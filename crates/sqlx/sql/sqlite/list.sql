-- Records in the order of enqueueing; whatever parameter is null does not matter.
-- ?1 after this seq, ?2 state, ?3 topics (null with ?4 null: all), ?4 beginnings of topics, ?5 key, ?6 tenant,
-- ?7 correlation id, ?8 failure class, ?9 created from (µs), ?10 created before (µs), ?11 ids in hexadecimal, ?12 limit
select seq, epoch, message_id, topic, key, order_policy, payload, content_type, headers, correlation_id, aggregate_type,
       aggregate_id, tenant_id, priority, attempts, lease_losses, occurred_at, created_at, due_at, expires_at,
       failing_since, handled, state, due_at = 9223372036854775807 as parked, leased_until, worker, done_at, done_by,
       error_class, last_error
from /*:*/outbox
where seq > ?1
  and (?2 is null or state = ?2)
  and ((?3 is null and ?4 is null) or topic in (select value from json_each(?3))
       or exists (select 1 from json_each(?4) b where substr(topic, 1, length(b.value)) = b.value))
  and (?5 is null or key = ?5)
  and (?6 is null or tenant_id = ?6)
  and (?7 is null or correlation_id = ?7)
  and (?8 is null or error_class = ?8)
  and (?9 is null or created_at >= ?9)
  and (?10 is null or created_at < ?10)
  and (?11 is null or message_id in (select unhex(value) from json_each(?11)))
order by seq
limit ?12
