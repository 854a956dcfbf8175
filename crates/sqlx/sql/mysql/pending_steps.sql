-- Those of these messages that are steps of pending joins.
-- seqs
select o.seq
from json_table(?, '$[*]' columns (seq bigint path '$')) s
straight_join /*:*/outbox o force index (primary) on o.seq = s.seq
where exists (select 1 from /*:*/outbox_join_member m force index (/*+*/outbox_join_member_message_id)
              straight_join /*:*/outbox_join j force index (primary) on j.join_id = m.join_id
              where m.message_id = o.message_id and j.status = 0)
