-- Remembers a message, unless it is there: changes one row, or none, and the caller's transaction goes on either way.
-- There is one writer: this takes the write lock, waiting for it (SQLITE_BUSY after the connection's patience), and holds it
-- even if nothing is changed. A transaction that has read before somebody else wrote cannot have it any more
-- (SQLITE_BUSY_SNAPSHOT, a conflict): it begins again, best with BEGIN IMMEDIATE.
-- ?1 consumer, ?2 source, ?3 message, ?4 topic, ?5 hash of the payload, ?6 payload, ?7 occurred at (µs)
insert into /*:*/outbox_inbox (consumer, source, message_id, topic, payload_hash, payload, occurred_at, received_at)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, cast((julianday('now') - 2440587.5) * 86400000000 as integer))
on conflict do nothing
