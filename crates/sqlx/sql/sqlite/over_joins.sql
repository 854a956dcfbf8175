-- The joins whose retention is over, and that no message waits for any more.
-- ?1 kept for (µs), ?2 limit
select j.join_id from /*:*/outbox_join j
where j.ended_at < cast((julianday('now') - 2440587.5) * 86400000000 as integer) - ?1
  and not exists (
      select 1 from /*:*/outbox_join_wait w join /*:*/outbox o on o.message_id = w.message_id
      where w.join_id = j.join_id and o.state in (0, 1))
order by j.ended_at, j.join_id
limit ?2
