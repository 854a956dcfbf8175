-- The messages that an operator's change is about, locked in the order of enqueueing.
-- $1 true: those that can be requeued; false: those that can be buried; the others as in list.sql without $1
select seq, message_id, key
from /*:*/outbox
where case when $1::boolean then state = 3
           else state = 0 or (state = 3 and key is not null and order_policy <> 2 and error_class not in (6, 8)) end
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
for update
