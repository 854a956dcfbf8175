-- The hash of a message that was found to be there. With a lock, because in REPEATABLE READ the caller's snapshot may be older
-- than the row; the insert that met it has left that lock already, so there is nothing to wait for.
-- consumer, source, message
select payload_hash from /*:*/outbox_inbox where consumer = ? and source = ? and message_id = ? lock in share mode
