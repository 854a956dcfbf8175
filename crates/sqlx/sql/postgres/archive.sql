-- Moves messages to the archive, and lets those go on that waited in their key for a dead one.
-- $1 seqs
with gone as (
    delete from /*:*/outbox where seq = any($1::bigint[]) returning *
),
archived as (
    insert into /*:*/outbox_archive select * from gone
)
select /*:*/free_next(array_agg(key), array_agg(seq)) from gone where key is not null and state = 3 having count(*) > 0
