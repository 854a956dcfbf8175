-- Not by me: again at once, without any charge. Answers 0 applied, 1 lost, 2 gone.
create procedure /*:*/release(in p_item bigint, in p_epoch int)
modifies sql data
sql security invoker
call /*:*/settle(json_array(json_array(p_item, p_epoch, 3, 0, null, null, 2147483647)), true)
