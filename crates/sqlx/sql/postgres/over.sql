-- The messages whose retention is over, done ones first. Steps of pending joins are kept.
-- $1 done are kept for (µs), $2 dead are kept for (µs; null: for ever), $3 limit
with done as materialized (
    select seq, key, state, done_at from /*:*/outbox o
    where state = 2 and done_at < statement_timestamp() - $1::bigint::float8 * interval '1 microsecond'
      and not exists (select 1 from /*:*/outbox_join_member m join /*:*/outbox_join j on j.join_id = m.join_id
                      where m.message_id = o.message_id and j.status = 0)
    order by done_at, seq
    limit $3
    for update skip locked
),
dead as materialized (
    select seq, key, state, done_at from /*:*/outbox o
    where state = 3 and done_at < statement_timestamp() - $2::bigint::float8 * interval '1 microsecond'
      and not exists (select 1 from /*:*/outbox_join_member m join /*:*/outbox_join j on j.join_id = m.join_id
                      where m.message_id = o.message_id and j.status = 0)
    order by done_at, seq
    limit $3
    for update skip locked
)
select seq, key, state from (select * from done union all select * from dead) over
order by state, done_at, seq
limit $3
