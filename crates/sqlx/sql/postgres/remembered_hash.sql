-- The hash of a message that was found to be there.
-- $1 consumer, $2 source, $3 message
select payload_hash from /*:*/outbox_inbox where consumer = $1 and source = $2 and message_id = $3
