-- Waits for the row.
-- seq
select seq from /*:*/outbox force index (primary) where seq = ? for update
