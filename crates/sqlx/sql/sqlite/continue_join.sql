-- Remembers that a waiting message has sent its continuation; answers a row unless it had before, or there is no such join.
-- ?1 join, ?2 message
insert into /*:*/outbox_join_wait (join_id, message_id, continued_at)
select j.join_id, ?2, cast((julianday('now') - 2440587.5) * 86400000000 as integer) from /*:*/outbox_join j where j.join_id = ?1
on conflict (join_id, message_id) do update set continued_at = excluded.continued_at where continued_at is null
returning 1
