-- What the routines refuse, in one place: raised with what was wrong and what to do.
create or replace function /*:*/require(holds boolean, what text, remedy text)
returns void
language plpgsql immutable
as $body$
begin
    if holds is distinct from true then
        raise exception '%', what using errcode = 'invalid_parameter_value', hint = remedy;
    end if;
end
$body$;

create or replace function /*:*/require_delay(name text, delay interval)
returns void
language sql immutable
as $body$
select /*:*/require(
    delay >= interval '0' and delay <= interval '100 years',
    name || ' is ' || coalesce(delay::text, 'null'), 'Give it 0 to 100 years.')
$body$;

create or replace function /*:*/require_lease(lease interval)
returns void
language sql immutable
as $body$
select /*:*/require(
    lease >= interval '1 millisecond' and lease <= interval '24 hours',
    'lease is ' || coalesce(lease::text, 'null'), 'Give it 1 ms to 24 h; 10 s to 300 s suit most handlers.')
$body$;
