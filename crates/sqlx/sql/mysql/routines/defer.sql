-- Not yet: again after the delay, without any charge. Answers 0 applied, 1 lost, 2 gone.
create procedure /*:*/defer(in p_item bigint, in p_epoch int, in p_delay_us bigint)
modifies sql data
sql security invoker
begin
    if not coalesce(p_delay_us between 0 and 3153600000000000, false) then
        signal sqlstate '22023' set message_text = 'give a delay of 0 to 100 years, in microseconds';
    end if;
    call /*:*/settle(json_array(json_array(p_item, p_epoch, 2, p_delay_us, null, null, 2147483647)), true);
end
