-- Lets leases last from now, and tells for each whether it is still held: 0 applied, 1 lost, 2 gone.
-- $1 seqs, $2 epochs, $3 lease
with asked as materialized (
    select * from unnest($1::bigint[], $2::integer[]) with ordinality as a (seq, epoch, n)
),
locked as materialized (
    select o.seq, o.epoch, o.state from /*:*/outbox o where o.seq = any($1::bigint[]) order by o.seq for update
),
renewed as (
    update /*:*/outbox o
    set leased_until = statement_timestamp() + $3::interval
    from asked a join locked l on l.seq = a.seq
    where o.seq = a.seq and l.state = 1 and l.epoch = a.epoch
)
select (case when l.seq is null then 2 when l.state = 1 and l.epoch = a.epoch then 0 else 1 end)::smallint
from asked a left join locked l on l.seq = a.seq
order by a.n
