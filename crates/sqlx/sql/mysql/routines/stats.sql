-- How many messages are in which state, counted up to a cap along the indexes.
create procedure /*:*/stats(in p_cap bigint)
reads sql data
sql security invoker
begin
    declare v_now datetime(6) default utc_timestamp(6);
    declare v_priority int;
    declare v_count, v_ready, v_scheduled, v_parked, v_leased, v_done, v_dead, v_failing bigint default 0;
    declare v_first, v_oldest, v_oldest_failing datetime(6);

    select min(priority) into v_priority from /*:*/outbox where state = 0 and lease_losses = 0;
    while v_priority is not null do
        select count(*), min(due_at) into v_count, v_first from (
            select due_at from /*:*/outbox force index (/*+*/outbox_ready)
            where state = 0 and lease_losses = 0 and priority = v_priority and due_at <= v_now
            order by due_at limit p_cap) c;
        set v_ready = v_ready + v_count;
        set v_oldest = least(coalesce(v_oldest, v_first), coalesce(v_first, v_oldest));
        select count(*) into v_count from (
            select 1 from /*:*/outbox force index (/*+*/outbox_ready)
            where state = 0 and lease_losses = 0 and priority = v_priority
              and due_at > v_now and due_at < '9999-12-31 23:59:59.999999'
            limit p_cap) c;
        set v_scheduled = v_scheduled + v_count;
        select count(*) into v_count from (
            select 1 from /*:*/outbox force index (/*+*/outbox_ready)
            where state = 0 and lease_losses = 0 and priority = v_priority
              and due_at = '9999-12-31 23:59:59.999999'
            limit p_cap) c;
        set v_parked = v_parked + v_count;
        select min(priority) into v_priority from /*:*/outbox
        where state = 0 and lease_losses = 0 and priority > v_priority;
    end while;

    select v_ready + coalesce(sum(due_at <= v_now), 0),
           v_scheduled + coalesce(sum(due_at > v_now and due_at < '9999-12-31 23:59:59.999999'), 0),
           v_parked + coalesce(sum(due_at = '9999-12-31 23:59:59.999999'), 0),
           min(if(due_at <= v_now, due_at, null))
    into v_ready, v_scheduled, v_parked, v_first
    from (
        select due_at from /*:*/outbox force index (/*+*/outbox_ready)
        where state = 0 and lease_losses > 0 limit p_cap) c;
    set v_oldest = least(coalesce(v_oldest, v_first), coalesce(v_first, v_oldest));

    select count(*) into v_leased from (
        select 1 from /*:*/outbox force index (/*+*/outbox_state) where state = 1 limit p_cap) c;
    select count(*) into v_done from (
        select 1 from /*:*/outbox force index (/*+*/outbox_state) where state = 2 limit p_cap) c;
    select count(*) into v_dead from (
        select 1 from /*:*/outbox force index (/*+*/outbox_state) where state = 3 limit p_cap) c;
    select count(*), min(failing) into v_failing, v_oldest_failing from (
        select failing from /*:*/outbox force index (/*+*/outbox_failing)
        where failing is not null and due_at > v_now and due_at < '9999-12-31 23:59:59.999999'
        order by failing limit p_cap) c;

    select least(v_ready, p_cap) as ready, least(v_scheduled, p_cap) as scheduled, least(v_parked, p_cap) as parked,
           v_leased as leased, v_done as done, v_dead as dead, timestampdiff(microsecond, v_oldest, v_now) as oldest,
           v_failing as failing, timestampdiff(microsecond, v_oldest_failing, v_now) as oldest_failing;
end
