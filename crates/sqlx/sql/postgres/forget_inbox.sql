-- Forgets what a consumer received so long ago, the oldest first, and answers how many it were. By their place in the table,
-- which never changes, because no row does. It locks nothing but what it deletes, and what is being inserted it does not see;
-- two at once wait for each other's rows and find them gone.
-- $1 consumer, $2 kept for (µs), $3 limit
with gone as (
    delete from /*:*/outbox_inbox
    where ctid = any(array(
        select ctid from /*:*/outbox_inbox
        where consumer = $1 and received_at < statement_timestamp() - $2::bigint::float8 * interval '1 microsecond'
        order by received_at
        limit $3))
    returning 1
)
select count(*) from gone
