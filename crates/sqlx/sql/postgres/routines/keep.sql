-- Keeping leases, and taking back what ran out.
create or replace function /*:*/renew_all(items bigint[], epochs integer[], lease interval default interval '30 seconds')
returns table (settled smallint)
language sql volatile
set jit = off
set enable_seqscan = off
as $body$
/*include renew*/
$body$;

create or replace function /*:*/renew(item bigint, epoch integer, lease interval default interval '30 seconds')
returns smallint
language sql volatile
as $body$
select /*:*/require_lease(lease);
select settled from /*:*/renew_all(array[item], array[epoch], lease)
$body$;

create or replace function /*:*/reap(max_messages bigint default 1000, max_losses integer default 5)
returns table (ready bigint, dead bigint)
language sql volatile
set jit = off
set enable_seqscan = off
as $body$
/*include reap*/
$body$;

create or replace function /*:*/expire(max_messages bigint default 1000)
returns bigint
language sql volatile
set jit = off
set enable_seqscan = off
as $body$
with expired (one) as (
/*include expire*/
)
select count(*) from expired
$body$;
