-- Takes messages back whose lease has run out: ready again, or dead at the last loss. Each is one conditional change;
-- the losses are counted last, because assignments to one table are made from left to right.
create procedure /*:*/reap(in p_limit int, in p_max_losses int)
modifies sql data
sql security invoker
begin
    declare v_now datetime(6);
    declare v_dead int;
    declare v_ready int default 0;
    declare exit handler for sqlexception begin rollback; resignal; end;

    set transaction isolation level read committed;
    start transaction;
    set v_now = utc_timestamp(6);

    update /*:*/outbox
    set done_at = v_now, error_class = 7, last_error = 'crash suspect', state = 3, leased_until = null,
        lease_losses = lease_losses + 1
    where state = 1 and leased_until < v_now and lease_losses + 1 >= p_max_losses
    order by leased_until, seq
    limit p_limit;
    set v_dead = row_count();

    if p_limit > v_dead then
        set p_limit = p_limit - v_dead;
        update /*:*/outbox
        set due_at = v_now, state = 0, leased_until = null, lease_losses = lease_losses + 1
        where state = 1 and leased_until < v_now and lease_losses + 1 < p_max_losses
        order by leased_until, seq
        limit p_limit;
        set v_ready = row_count();
    end if;
    commit;
    select v_ready as ready, v_dead as dead;
end
