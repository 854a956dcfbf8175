-- Ends a pause: answers with one row, or with none if these topics, written the same way, are not paused. It commits nothing itself.
create procedure /*:*/resume(in p_topics varchar(255) character set utf8mb4)
modifies sql data
sql security invoker
begin
    declare v_gone int;

    delete from /*:*/outbox_pause where topics = cast(p_topics as binary);
    set v_gone = row_count();
    select true as resumed from (select 1 as one) single where v_gone > 0;
end
