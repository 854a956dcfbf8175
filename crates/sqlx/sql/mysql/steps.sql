-- A page of a join's steps, in the order of their messages' ids.
-- join, behind this message, limit
select message_id, status, timestampdiff(microsecond, '1970-01-01', created_at),
       timestampdiff(microsecond, '1970-01-01', updated_at)
from /*:*/outbox_join_member
where join_id = ? and message_id > coalesce(?, x'')
order by message_id
limit ?
