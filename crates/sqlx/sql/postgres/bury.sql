-- Gives messages up, and lets those behind them in their key go on.
-- $1 seqs, $2 reason
with buried as (
    update /*:*/outbox
    set state = 3, done_at = statement_timestamp(), error_class = 8, last_error = $2, born = null,
        due_at = case when due_at = 'infinity' then statement_timestamp() else due_at end
    where seq = any($1::bigint[]) and state in (0, 3)
    returning seq, key
)
select /*:*/free_next(array_agg(key), array_agg(seq)) from buried where key is not null having count(*) > 0
