-- Forgets what a consumer received so long ago, the oldest first: answers with a row for each. One statement takes the write
-- lock before it reads.
-- ?1 consumer, ?2 kept for (µs), ?3 limit
delete from /*:*/outbox_inbox
where (consumer, source, message_id) in (
    select consumer, source, message_id from /*:*/outbox_inbox
    where consumer = ?1 and received_at < cast((julianday('now') - 2440587.5) * 86400000000 as integer) - ?2
    order by received_at
    limit ?3)
returning 1
