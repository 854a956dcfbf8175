-- Deletes joins with their steps and waits.
-- ?1 joins
delete from /*:*/outbox_join_member where join_id in (select unhex(value) from json_each(?1));
delete from /*:*/outbox_join_wait where join_id in (select unhex(value) from json_each(?1));
delete from /*:*/outbox_join where join_id in (select unhex(value) from json_each(?1))
