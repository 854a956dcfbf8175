-- Lets leases last from now, and tells for each whether it is still held: 0 applied, 1 lost, 2 gone.
-- p_leases: [[seq, epoch], ..] in the order of seq. p_lease_us: null means 30 s.
create procedure /*:*/renew(in p_leases longtext character set utf8mb4, in p_lease_us bigint)
modifies sql data
sql security invoker
begin
    declare v_is_ours boolean default false;
    declare exit handler for 1568 signal sqlstate '25001' set message_text = 'this call commits: make it outside of your transaction';
    -- Never ends a transaction that the caller began.
    declare exit handler for sqlexception begin if v_is_ours then rollback and no chain no release; end if; resignal; end;

    set p_lease_us = coalesce(p_lease_us, 30000000);
    if p_lease_us not between 1000 and 86400000000 then
        signal sqlstate '22023' set message_text = 'lease: give it 1 ms to 24 h, in microseconds';
    end if;

    set transaction isolation level read committed;
    start transaction;
    set v_is_ours = true;

    select case when o.seq is null then 2 when o.state = 1 and o.epoch = a.epoch then 0 else 1 end as settled
    from json_table(p_leases, '$[*]' columns (n for ordinality, seq bigint path '$[0]', epoch int path '$[1]')) a
    left join /*:*/outbox o on o.seq = a.seq
    order by a.n
    for update;

    update json_table(p_leases, '$[*]' columns (seq bigint path '$[0]', epoch int path '$[1]')) a
    straight_join /*:*/outbox o force index (primary) on o.seq = a.seq
    set o.leased_until = utc_timestamp(6) + interval p_lease_us microsecond
    where o.state = 1 and o.epoch = a.epoch;
    commit and no chain no release;
end
