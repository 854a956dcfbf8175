-- A page of a join's steps, in the order of their messages' ids.
-- ?1 join, ?2 behind this message, ?3 limit
select message_id, status, created_at, updated_at
from /*:*/outbox_join_member
where join_id = ?1 and (?2 is null or message_id > ?2)
order by message_id
limit ?3
