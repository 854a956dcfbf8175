-- Not yet: again after the delay, without any charge. Answers 0 applied, 1 lost, 2 gone.
create procedure /*:*/defer(in p_item bigint, in p_epoch int, in p_delay_us bigint)
modifies sql data
sql security invoker
call /*:*/settle(json_array(json_array(p_item, p_epoch, 2, p_delay_us, null, null, 2147483647)), true)
