-- Answers with the row unless somebody keeps it locked.
-- seq
select seq from /*:*/outbox force index (primary) where seq = ? for update skip locked
