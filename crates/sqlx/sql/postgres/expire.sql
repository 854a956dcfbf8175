-- Gives up messages that nobody claimed before their expiry.
-- $1 limit
with over as materialized (
    select seq from /*:*/outbox
    where state = 0 and expires_at <= statement_timestamp()
    order by expires_at, seq
    limit $1
    for update skip locked
)
update /*:*/outbox o
set state = 3, done_at = statement_timestamp(), error_class = 6, last_error = 'expired',
    due_at = case when o.due_at = 'infinity' then statement_timestamp() else o.due_at end
where o.seq = any(array(select seq from over))
returning 1::bigint
