-- What is paused, in the order of the topics.
select topics, by_whom, why, timestampdiff(microsecond, '1970-01-01', since) from /*:*/outbox_pause order by topics
