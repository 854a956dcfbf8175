-- Whether the message is there.
-- ?1 message id
select 1 from /*:*/outbox where message_id = ?1
