-- The messages whose retention is over, done ones first. Steps of pending joins are kept.
-- ?1 done are kept for (µs), ?2 dead are kept for (µs; null: for ever), ?3 limit
select seq, key, state from (
    select * from (
        select seq, key, state, done_at from /*:*/outbox o
        where state = 2 and done_at < cast((julianday('now') - 2440587.5) * 86400000000 as integer) - ?1
          and not exists (select 1 from /*:*/outbox_join_member m join /*:*/outbox_join j on j.join_id = m.join_id
                          where m.message_id = o.message_id and j.status = 0)
        order by done_at, seq
        limit ?3
    )
    union all
    select * from (
        select seq, key, state, done_at from /*:*/outbox o
        where state = 3 and done_at < cast((julianday('now') - 2440587.5) * 86400000000 as integer) - ?2
          and not exists (select 1 from /*:*/outbox_join_member m join /*:*/outbox_join j on j.join_id = m.join_id
                          where m.message_id = o.message_id and j.status = 0)
        order by done_at, seq
        limit ?3
    )
)
order by state, done_at, seq
limit ?3
