-- Sets aside the due messages of keys that a dead message with the policy park holds back. The dead ones are locked,
-- so that a requeue, which un-parks in a second statement, comes either wholly before or wholly after.
-- $1 limit
with holders as materialized (
    select seq, key from /*:*/outbox
    where state = 3 and key is not null and order_policy = 1 and error_class not in (6, 8)
    order by seq
    for update skip locked
),
behind as materialized (
    select f.seq from holders h
    join /*:*/outbox f on f.key = h.key and f.seq > h.seq
    where f.state = 0 and f.due_at <= statement_timestamp()
    order by f.seq
    limit $1
    for update of f skip locked
)
update /*:*/outbox o set due_at = 'infinity' where o.seq = any(array(select seq from behind))
returning 1::bigint
