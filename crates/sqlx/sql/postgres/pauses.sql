-- What is paused, in the order of the topics.
select topics, by_whom, why, since from /*:*/outbox_pause order by topics
