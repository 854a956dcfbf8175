-- Remembers a message, unless it is there: changes one row, or none, and the caller's transaction goes on either way.
-- While another transaction that remembers the same message is open, this waits for its end. If that commits, there is a
-- conflict, and in READ COMMITTED nothing is done: remembered_hash.sql, which follows, has a snapshot of its own and sees the
-- row. In stricter transactions whose snapshot is older than the row, PostgreSQL refuses (40001) rather than pass over what
-- they may not see. If the other one rolls back, one of those who wait makes the row, and the next waits for that one: there
-- is nothing to deadlock over.
-- $1 consumer, $2 source, $3 message, $4 topic, $5 hash of the payload, $6 payload, $7 occurred at (µs)
insert into /*:*/outbox_inbox (consumer, source, message_id, topic, payload_hash, payload, occurred_at, received_at)
values (
    $1, $2, $3, $4, $5, $6, timestamptz 'epoch' + $7::bigint::float8 * interval '1 microsecond', statement_timestamp()
)
on conflict do nothing
