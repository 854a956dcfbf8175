-- Which of these leased messages the caller's own transaction sees. One lookup by primary key for each, whatever the
-- planner's settings on a user's connection are: hence the limit, which keeps it from being joined otherwise, and the sum,
-- which keeps the index of what is leased out of it.
-- $1 seqs, $2 epochs
select o.seq is not null
from unnest($1::bigint[], $2::integer[]) with ordinality as a (seq, epoch, n)
left join lateral (
    select seq from /*:*/outbox where seq = a.seq and epoch = a.epoch and state + 0 = 1 limit 1
) o on true
order by a.n
