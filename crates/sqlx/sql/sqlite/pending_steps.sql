-- Those of these messages that are steps of pending joins.
-- ?1 seqs
select o.seq from /*:*/outbox o
where o.seq in (select value from json_each(?1))
  and exists (select 1 from /*:*/outbox_join_member m join /*:*/outbox_join j on j.join_id = m.join_id
              where m.message_id = o.message_id and j.status = 0)
