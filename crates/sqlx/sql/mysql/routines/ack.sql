-- Delivered. Answers 0 applied, 1 lost, 2 gone.
create procedure /*:*/ack(in p_item bigint, in p_epoch int, in p_keep_done boolean)
modifies sql data
sql security invoker
call /*:*/settle(json_array(json_array(p_item, p_epoch, 0, 0, null, null, 2147483647)), p_keep_done)
