-- Sets aside the due messages of keys that a dead message with the policy park holds back.
-- ?1 limit
update /*:*/outbox
set due_at = 9223372036854775807
where seq in (
    select f.seq
    from /*:*/outbox h indexed by /*+*/outbox_parking
    cross join /*:*/outbox f on f.key = h.key and f.seq > h.seq
        and (f.state in (0, 1) or (f.state = 3 and f.order_policy <> 2 and f.error_class not in (6, 8)))
    where h.state = 3 and h.key is not null and h.order_policy = 1 and h.error_class not in (6, 8)
      and f.state = 0 and f.due_at <= cast((julianday('now') - 2440587.5) * 86400000000 as integer)
    order by f.seq
    limit ?1
)
returning 1
