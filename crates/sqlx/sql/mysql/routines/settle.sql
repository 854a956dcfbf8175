-- Applies outcomes to leased messages, and tells for each whether it takes place: 0 applied, 1 lost, 2 gone.
-- p_settlements: [[seq, epoch, outcome, delay µs, class, error, most attempts, most µs of failing without charge, handlers
-- that are done], ..] in the order of seq, in which the rows are locked, so that two settlements of the same rows cannot
-- deadlock; the last two may be absent. Outcomes: 0 ack, 1 abandon, 2 defer, 3 release, 4 fail.
-- Joins that end by it follow as a second answer, with null in front.
create procedure /*:*/settle(in p_settlements longtext character set utf8mb4, in p_keep_done boolean)
modifies sql data
sql security invoker
begin
    declare v_now datetime(6);
    declare v_newest binary(16);
    declare v_ends longtext character set utf8mb4;
    declare v_is_ours boolean default false;
    declare exit handler for 1568 signal sqlstate '25001' set message_text = 'this call commits: make it outside of your transaction';
    -- Never ends a transaction that the caller began.
    declare exit handler for sqlexception begin if v_is_ours then rollback and no chain no release; end if; resignal; end;

    set transaction isolation level read committed;
    start transaction;
    set v_is_ours = true;

    select case when o.seq is null then 2
                when o.state = 1 and o.epoch = a.epoch then 0
                when o.state = 2 and o.epoch = a.epoch and a.outcome = 0 then 0
                else 1 end as settled
    from json_table(p_settlements, '$[*]' columns (
        n for ordinality, seq bigint path '$[0]', epoch int path '$[1]', outcome int path '$[2]')) a
    left join /*:*/outbox o on o.seq = a.seq
    order by a.n
    for update;
    -- After the locks, which may have been waited for.
    set v_now = utc_timestamp(6);

    -- Step by step, because the order of assignments in an update of several tables is nobody's promise.
    update json_table(p_settlements, '$[*]' columns (
        seq bigint path '$[0]', epoch int path '$[1]', outcome int path '$[2]', class int path '$[4]')) a
    straight_join /*:*/outbox o force index (primary) on o.seq = a.seq
    set o.failing_since = v_now
    where o.state = 1 and o.epoch = a.epoch and o.failing_since is null and a.outcome = 1 and a.class in (2, 3);

    update json_table(p_settlements, '$[*]' columns (
        seq bigint path '$[0]', epoch int path '$[1]', outcome int path '$[2]', class int path '$[4]')) a
    straight_join /*:*/outbox o force index (primary) on o.seq = a.seq
    set o.attempts = o.attempts + 1, o.failing_since = null
    where o.state = 1 and o.epoch = a.epoch and a.outcome = 1 and a.class not in (2, 3);

    -- Who has no joins pays for this look alone. It comes after the locks: who attaches a message has locked it, too. What
    -- is about to be deleted counts, so what becomes of the messages is noted before.
    select max(join_id) into v_newest from /*:*/outbox_join;
    if v_newest is not null then
        -- MariaDB cuts the list below at this length.
        set session group_concat_max_len = 8388608;
        select json_arrayagg(json_array(hex(ended.message_id), ended.ending)) into v_ends from (
            select o.message_id,
                   case when a.outcome = 0 then 1
                        when a.outcome = 4 or (a.outcome = 1 and if(
                                 a.class in (2, 3), o.failing_since + interval a.max_age microsecond <= v_now,
                                 o.attempts >= a.max_attempts)) then 2
                        when a.outcome = 2 then 0 end as ending
            from json_table(p_settlements, '$[*]' columns (
                seq bigint path '$[0]', epoch int path '$[1]', outcome int path '$[2]', class int path '$[4]',
                max_attempts int path '$[6]', max_age bigint path '$[7]')) a
            straight_join /*:*/outbox o force index (primary) on o.seq = a.seq
            where o.state = 1 and o.epoch = a.epoch
        ) ended
        where ended.ending is not null;
    end if;

    if not p_keep_done then
        delete o
        from json_table(p_settlements, '$[*]' columns (
            seq bigint path '$[0]', epoch int path '$[1]', outcome int path '$[2]')) a
        straight_join /*:*/outbox o force index (primary) on o.seq = a.seq
        where o.state = 1 and o.epoch = a.epoch and a.outcome = 0;
    end if;

    update json_table(p_settlements, '$[*]' columns (
        seq bigint path '$[0]', epoch int path '$[1]', outcome int path '$[2]', delay bigint path '$[3]',
        class int path '$[4]', error text character set utf8mb4 path '$[5]', max_attempts int path '$[6]',
        max_age bigint path '$[7]', handled mediumtext character set utf8mb4 path '$[8]')) a
    straight_join /*:*/outbox o force index (primary) on o.seq = a.seq
    set o.due_at = if(a.outcome = 2 or (a.outcome = 1 and not coalesce(if(
                          a.class in (2, 3), o.failing_since + interval a.max_age microsecond <= v_now,
                          o.attempts >= a.max_attempts), false)),
                      v_now + interval a.delay microsecond, o.due_at),
        o.done_at = if(a.outcome in (0, 4) or (a.outcome = 1 and if(
                           a.class in (2, 3), o.failing_since + interval a.max_age microsecond <= v_now,
                           o.attempts >= a.max_attempts)), v_now, null),
        o.done_by = if(a.outcome = 0, o.worker, null),
        o.leased_until = null,
        o.error_class = coalesce(a.class, o.error_class),
        o.last_error = coalesce(a.error, o.last_error),
        o.handled = coalesce(a.handled, o.handled),
        o.state = case when a.outcome = 0 then 2
                       when a.outcome = 4 or (a.outcome = 1 and if(
                                a.class in (2, 3), o.failing_since + interval a.max_age microsecond <= v_now,
                                o.attempts >= a.max_attempts)) then 3
                       else 0 end
    where o.state = 1 and o.epoch = a.epoch;

    if v_ends is not null then
        call /*:*/count_steps(v_ends, v_now);
    end if;
    commit and no chain no release;
end
