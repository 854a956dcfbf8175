-- The messages that an operator's change is about, in the order of enqueueing; its caller holds the write lock.
-- ?1 true: those that can be requeued; false: those that can be buried; the others as in list.sql
select seq, message_id, key
from /*:*/outbox
where case when ?1 then state = 3
           else state = 0 or (state = 3 and key is not null and order_policy <> 2 and error_class not in (6, 8)) end
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
