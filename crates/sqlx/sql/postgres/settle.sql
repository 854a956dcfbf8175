-- Applies outcomes to leased messages, and tells for each whether it took place: 0 applied, 1 lost, 2 gone.
-- The rows are locked in the order of seq first, so that two settlements of the same rows cannot deadlock.
-- $1 seqs, $2 epochs, $3 outcomes (0 ack, 1 abandon, 2 defer, 3 release, 4 fail), $4 delays (µs), $5 failure classes,
-- $6 error texts, $7 most attempts, $8 whether done messages are kept, $9 for how long a message may fail without a break
-- and without charge (µs; null: for ever), $10 handlers that are done (one a line; null: as before)
with asked as materialized (
    select * from unnest(
        $1::bigint[], $2::integer[], $3::smallint[], $4::bigint[], $5::smallint[], $6::text[], $7::integer[],
        $9::bigint[], $10::text[]
    ) with ordinality as a (seq, epoch, outcome, delay, class, error, max_attempts, max_age, handled, n)
),
locked as materialized (
    select o.seq, o.epoch, o.state, o.attempts, o.failing_since from /*:*/outbox o
    where o.seq = any($1::bigint[])
    order by o.seq
    for update
),
judged as materialized (
    select a.n, a.seq, a.outcome, a.delay, a.class, a.error, a.handled,
           l.attempts + case when a.outcome = 1 and a.class not in (2, 3) then 1 else 0 end as attempts,
           case when a.outcome <> 1 then l.failing_since
                when a.class in (2, 3) then coalesce(l.failing_since, statement_timestamp()) end as failing_since,
           a.outcome = 4 or (a.outcome = 1 and case
               when a.class in (2, 3) then coalesce(
                   coalesce(l.failing_since, statement_timestamp()) + a.max_age * interval '1 microsecond'
                   <= statement_timestamp(), false)
               else l.attempts + 1 >= a.max_attempts end) as dies,
           case when l.seq is null then 2
                when l.state = 1 and l.epoch = a.epoch then 0
                when l.state = 2 and l.epoch = a.epoch and a.outcome = 0 then 0
                else 1 end as settled,
           l.state = 1 and l.epoch = a.epoch as held
    from asked a left join locked l on l.seq = a.seq
),
changed as (
    update /*:*/outbox o
    set state = case when j.outcome = 0 then 2 when j.dies then 3 else 0 end,
        attempts = j.attempts,
        failing_since = j.failing_since,
        due_at = case when j.outcome in (1, 2) and not j.dies
                      then statement_timestamp() + j.delay * interval '1 microsecond' else o.due_at end,
        done_at = case when j.outcome = 0 or j.dies then statement_timestamp() end,
        done_by = case when j.outcome = 0 then o.worker end,
        leased_until = null,
        worker = null,
        error_class = coalesce(j.class, o.error_class),
        last_error = coalesce(j.error, o.last_error),
        handled = coalesce(j.handled, o.handled)
    from judged j
    where o.seq = j.seq and j.held and (j.outcome <> 0 or $8::boolean)
),
removed as (
    delete from /*:*/outbox o using judged j where o.seq = j.seq and j.held and j.outcome = 0 and not $8::boolean
)
select settled::smallint from judged order by n
