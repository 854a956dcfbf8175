-- The messages whose retention is over, done ones first, locked in the transaction of its caller.
create procedure /*:*/over(in p_done_us bigint, in p_dead_us bigint, in p_limit int)
modifies sql data
sql security invoker
begin
    select seq, `key`, state from (
        (select seq, `key`, state, done_at from /*:*/outbox force index (/*+*/outbox_done)
         where state = 2 and done_at < utc_timestamp(6) - interval p_done_us microsecond
         order by done_at, seq limit p_limit for update skip locked)
        union all
        (select seq, `key`, state, done_at from /*:*/outbox force index (/*+*/outbox_done)
         where state = 3 and done_at < utc_timestamp(6) - interval p_dead_us microsecond
         order by done_at, seq limit p_limit for update skip locked)
    ) over_age
    order by state, done_at, seq
    limit p_limit;
end
