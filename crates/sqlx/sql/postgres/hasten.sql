-- Makes messages of these topics due now that wait for the end of an outage, those that have failed for longest first.
-- $1 topics, $2 their beginnings, $3 limit
with waiting as (
    select o.seq
    from /*:*/outbox o
    where o.state = 0 and o.error_class in (2, 3) and o.error_class = 2
      and o.due_at > statement_timestamp() and o.due_at < 'infinity'
      and (($1::text[] is null and $2::text[] is null) or o.topic = any($1::text[]) or o.topic ^@ any($2::text[]))
    order by o.failing_since, o.seq
    limit $3::bigint
    for update skip locked
)
update /*:*/outbox o
set due_at = statement_timestamp(), born = null
from waiting w
where o.seq = w.seq
returning 1::bigint
