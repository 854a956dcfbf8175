-- Settling: one function for a batch of any outcomes, and one per verb. Each answers 0 applied, 1 lost, 2 gone.
-- A max age is for how long a message may fail without a break for reasons that cost no attempt; null: for ever.
-- handled are the names of the handlers that are done with a message, one a line; null leaves them as they are.
create or replace function /*:*/settle(
    items bigint[], epochs integer[], outcomes smallint[], delays_us bigint[], classes smallint[], errors text[],
    max_attempts integer[], keep_done boolean default true, max_ages_us bigint[] default null,
    handled text[] default null
)
returns table (settled smallint)
language sql volatile
set jit = off
set enable_seqscan = off
as $body$
/*include settle*/
$body$;

create or replace function /*:*/ack(item bigint, epoch integer, keep_done boolean default true)
returns smallint
language sql volatile
as $body$
select settled from /*:*/settle(
    array[item], array[epoch], '{0}', '{0}', array[null::smallint], array[null::text], '{2147483647}', keep_done)
$body$;

-- Without a delay: min(2^attempts s, 60 s), times a jitter of a half to one and a half.
-- Classes: 1 business, 2 infrastructure, 3 unroutable (these two cost no attempt), 4 permanent, 5 too large.
create or replace function /*:*/abandon(
    item bigint, epoch integer, error text default null, delay interval default null, class integer default 1,
    max_attempts integer default 10, max_age interval default null
)
returns smallint
language sql volatile
as $body$
select /*:*/require_delay('delay', coalesce(delay, interval '0'));
select /*:*/require_delay('max_age', coalesce(max_age, interval '0'));
select /*:*/require(class between 1 and 5, 'class is ' || coalesce(class::text, 'null'), 'Give it 1 to 5.');
select /*:*/require(
    max_attempts >= 1, 'max_attempts is ' || coalesce(max_attempts::text, 'null'), 'Give it at least 1.');
select settled from /*:*/settle(
    array[item], array[epoch], '{1}',
    array[(extract(epoch from coalesce(delay, (
        select least(power(2, least(o.attempts + 1, 10)), 60) * (0.5 + random()) * interval '1 second'
        from /*:*/outbox o where o.seq = item))) * 1000000)::bigint],
    array[class::smallint],
    array[left(case when class in (2, 3) then '[INFRA] ' else '[BUSINESS] ' end || coalesce(error, ''), 1000)],
    array[max_attempts], true, array[(extract(epoch from max_age) * 1000000)::bigint])
$body$;

create or replace function /*:*/defer(item bigint, epoch integer, delay interval)
returns smallint
language sql volatile
as $body$
select /*:*/require_delay('delay', delay);
select settled from /*:*/settle(
    array[item], array[epoch], '{2}', array[(extract(epoch from delay) * 1000000)::bigint], array[null::smallint],
    array[null::text], '{2147483647}')
$body$;

create or replace function /*:*/release(item bigint, epoch integer)
returns smallint
language sql volatile
as $body$
select settled from /*:*/settle(
    array[item], array[epoch], '{3}', '{0}', array[null::smallint], array[null::text], '{2147483647}')
$body$;

create or replace function /*:*/fail(item bigint, epoch integer, error text, class integer default 4)
returns smallint
language sql volatile
as $body$
select /*:*/require(class between 1 and 5, 'class is ' || coalesce(class::text, 'null'), 'Give it 1 to 5.');
select settled from /*:*/settle(
    array[item], array[epoch], '{4}', '{0}', array[class::smallint],
    array[left(case when class in (2, 3) then '[INFRA] ' else '[BUSINESS] ' end || coalesce(error, ''), 1000)],
    '{2147483647}')
$body$;
