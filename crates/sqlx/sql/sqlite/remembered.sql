-- What is remembered of a message.
-- ?1 consumer, ?2 source, ?3 message
select topic, payload_hash, payload, occurred_at, received_at
from /*:*/outbox_inbox where consumer = ?1 and source = ?2 and message_id = ?3
