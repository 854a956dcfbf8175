-- What is remembered of a message.
-- consumer, source, message
select topic, payload_hash, payload, timestampdiff(microsecond, '1970-01-01', occurred_at),
       timestampdiff(microsecond, '1970-01-01', received_at)
from /*:*/outbox_inbox where consumer = ? and source = ? and message_id = ?
