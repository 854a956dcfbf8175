-- Ends a pause: answers with one row, or with none if these topics, written the same way, are not paused.
-- ?1 topics
delete from /*:*/outbox_pause where topics = ?1 returning 1
