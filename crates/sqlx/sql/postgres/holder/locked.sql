-- Fails at once if somebody keeps the message's row locked.
-- $1 message id
select true from /*:*/outbox where message_id = $1::uuid for update nowait
