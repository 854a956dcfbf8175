-- A page of joins, in the order of their ids.
-- ?1 behind this id, ?2 grouping key, ?3 status, ?4 message, ?5 limit
select join_id, grouping_key, status, expected_steps, attached_steps, completed_steps, failed_steps, metadata, created_at,
       updated_at, ended_at, expires_at
from /*:*/outbox_join
where (?1 is null or join_id > ?1)
  and (?2 is null or grouping_key = ?2)
  and (?3 is null or status = ?3)
  and (?4 is null or join_id in (select m.join_id from /*:*/outbox_join_member m where m.message_id = ?4))
order by join_id
limit ?5
