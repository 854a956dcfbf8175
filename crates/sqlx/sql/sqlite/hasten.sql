-- Makes messages of these topics due now that wait for the end of an outage, those that have failed for longest first.
-- ?1 topics, ?2 their beginnings, ?3 limit
update /*:*/outbox
set due_at = cast((julianday('now') - 2440587.5) * 86400000000 as integer)
where seq in (
    select o.seq
    from /*:*/outbox o indexed by /*+*/outbox_failing
    where o.state = 0 and o.error_class in (2, 3) and o.error_class = 2
      and o.due_at > cast((julianday('now') - 2440587.5) * 86400000000 as integer) and o.due_at < 9223372036854775807
      and ((?1 is null and ?2 is null) or o.topic in (select value from json_each(?1))
           or exists (select 1 from json_each(?2) p where substr(o.topic, 1, length(p.value)) = p.value))
    order by o.failing_since, o.seq
    limit ?3
)
returning 1
