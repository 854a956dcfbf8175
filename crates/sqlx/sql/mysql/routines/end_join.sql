-- Cancels a pending join, in the transaction of its caller, and answers as join_answer does.
-- p_strict: what is refused is an error.
create procedure /*:*/end_join(in p_join binary(16), in p_strict boolean)
modifies sql data
sql security invoker
begin
    declare v_now datetime(6) default utc_timestamp(6);
    declare v_status int;
    declare exit handler for 1020 signal sqlstate '40001'
        set message_text = 'another transaction changed this; the database has rolled yours back: begin it again';

    select status into v_status from /*:*/outbox_join where join_id = p_join for update;
    if v_status = 0 then
        update /*:*/outbox_join set status = 3, updated_at = v_now, ended_at = v_now where join_id = p_join;
        call /*:*/wake_waits(json_array(hex(p_join)), utc_timestamp(6));
    end if;
    call /*:*/join_answer(v_status is null, p_join, null, 0, coalesce(v_status = 0, false), p_strict);
end
