-- The number of the message's row, of this session, and the server's version.
-- message id
select seq, connection_id(), version() from /*:*/outbox where message_id = ?
