-- What the routines have in common. What they refuse is raised with what was wrong and what to do.
--
-- Every routine pins its search path: a function or operator that another role created in a schema of the caller's path would
-- otherwise run with the caller's rights. Every routine that runs queries turns JIT off: compiling takes far longer than they do.
create or replace function /*:*/require(holds boolean, what text, remedy text)
returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $body$
begin
    if holds is distinct from true then
        raise exception '%', what using errcode = 'invalid_parameter_value', hint = remedy;
    end if;
end
$body$;

-- Refuses transactions with a snapshot older than their locks: at those levels two workers could hold one message.
create or replace function /*:*/require_read_committed()
returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $body$
begin
    if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
        raise exception 'messages cannot be claimed or settled at isolation level %', current_setting('transaction_isolation')
            using errcode = 'invalid_transaction_state',
                  hint = 'Begin the transaction with ISOLATION LEVEL READ COMMITTED, or make that the default of this role: '
                         'ALTER ROLE ... SET default_transaction_isolation = ''read committed''.';
    end if;
end
$body$;

create or replace function /*:*/require_delay(name text, delay interval)
returns void
language sql immutable
set search_path = pg_catalog, pg_temp
as $body$
select /*:*/require(
    delay >= interval '0' and delay <= interval '100 years',
    name || ' is ' || coalesce(delay::text, 'null'), 'Give it 0 to 100 years.')
$body$;

create or replace function /*:*/require_lease(lease interval)
returns void
language sql immutable
set search_path = pg_catalog, pg_temp
as $body$
select /*:*/require(
    lease >= interval '1 millisecond' and lease <= interval '24 hours',
    'lease is ' || coalesce(lease::text, 'null'), 'Give it 1 ms to 24 h; 10 s to 300 s suit most handlers.')
$body$;

-- An id of version 7, ordered by time.
create or replace function /*:*/new_id()
returns uuid
language sql volatile
set search_path = pg_catalog, pg_temp
set jit = off
as $body$
select (lpad(to_hex((extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0') || '7'
        || substr(replace(gen_random_uuid()::text, '-', ''), 14))::uuid
$body$;
