-- Registers a message that waits for a join, in the transaction of its caller, and answers as join_answer does. From here
-- to the end of that transaction the join's end waits, and will find the message.
-- p_strict: what is refused is an error.
create procedure /*:*/wait_for_join(in p_join binary(16), in p_message binary(16), in p_strict boolean)
modifies sql data
sql security invoker
begin
    declare v_status int;
    declare exit handler for 1020 signal sqlstate '40001'
        set message_text = 'another transaction changed this; the database has rolled yours back: begin it again';

    select status into v_status from /*:*/outbox_join where join_id = p_join for update;
    if v_status is not null then
        insert ignore into /*:*/outbox_join_wait (join_id, message_id) values (p_join, p_message);
    end if;
    call /*:*/join_answer(v_status is null, p_join, null, 0, false, p_strict);
end
