-- Deletes messages, and lets those go on that waited in their key for a dead one.
-- $1 seqs
with pruned as (
    delete from /*:*/outbox where seq = any($1::bigint[])
    returning seq, key, state
)
select /*:*/free_next(array_agg(key), array_agg(seq)) from pruned where key is not null and state = 3 having count(*) > 0
