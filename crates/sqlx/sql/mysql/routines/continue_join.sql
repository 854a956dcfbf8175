-- Remembers that a waiting message has sent its continuation, in the transaction of its caller; answers a row unless it had
-- before, or there is no such join.
create procedure /*:*/continue_join(in p_join binary(16), in p_message binary(16))
modifies sql data
sql security invoker
begin
    declare v_first int;

    update /*:*/outbox_join_wait set continued_at = utc_timestamp(6)
    where join_id = p_join and message_id = p_message and continued_at is null;
    set v_first = row_count();
    if v_first = 0 then
        insert ignore into /*:*/outbox_join_wait (join_id, message_id, continued_at)
        select j.join_id, p_message, utc_timestamp(6) from /*:*/outbox_join j where j.join_id = p_join;
        set v_first = row_count();
    end if;
    select true as mine from (select 1 as one) single where v_first > 0;
end
