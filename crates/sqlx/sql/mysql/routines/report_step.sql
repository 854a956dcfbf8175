-- Counts a step by hand, in the transaction of its caller, and answers as join_answer does. The caller's snapshot may be
-- old: what decides is read with a lock.
-- p_ending: 1 completed, 2 failed. p_strict: what is refused is an error.
create procedure /*:*/report_step(
    in p_join binary(16), in p_message binary(16), in p_ending int, in p_strict boolean
)
modifies sql data
sql security invoker
begin
    declare v_now datetime(6) default utc_timestamp(6);
    declare v_status, v_step, v_expected, v_completed, v_failed int;
    declare v_code, v_counted int default 0;
    declare v_ended boolean default false;
    declare exit handler for 1020 signal sqlstate '40001'
        set message_text = 'another transaction changed this; the database has rolled yours back: begin it again';

    select status, expected_steps, completed_steps, failed_steps into v_status, v_expected, v_completed, v_failed
    from /*:*/outbox_join where join_id = p_join
    for update;
    if v_status is null then
        set v_code = 1;
    else
        select status into v_step from /*:*/outbox_join_member where join_id = p_join and message_id = p_message
        for update;
        set v_code = if(v_step is null, 2, 0);
    end if;

    if v_step = 0 then
        -- Only a cancelled or expired join has pending steps left: those are late.
        update /*:*/outbox_join_member set status = p_ending + if(v_status in (3, 4), 2, 0), updated_at = v_now
        where join_id = p_join and message_id = p_message;
        set v_counted = v_status = 0;
    end if;
    if v_counted then
        set v_completed = v_completed + (p_ending = 1), v_failed = v_failed + (p_ending = 2);
        set v_ended = v_completed + v_failed >= v_expected;
        update /*:*/outbox_join
        set completed_steps = v_completed,
            failed_steps = v_failed,
            updated_at = v_now,
            ended_at = if(v_ended, v_now, null),
            status = case when not v_ended then 0 when v_failed > 0 then 2 else 1 end
        where join_id = p_join;
        if v_ended then
            call /*:*/wake_waits(json_array(hex(p_join)), utc_timestamp(6));
        end if;
    end if;
    call /*:*/join_answer(v_code, p_join, if(v_code = 2, p_message, null), v_counted, v_ended, p_strict);
end
