-- Never: dead. Answers 0 applied, 1 lost, 2 gone. Classes as in abandon; null means 4.
create procedure /*:*/fail(in p_item bigint, in p_epoch int, in p_error text character set utf8mb4, in p_class int)
modifies sql data
sql security invoker
begin
    set p_class = coalesce(p_class, 4);
    if p_class not between 1 and 5 then
        signal sqlstate '22023' set message_text = 'give a class of 1 to 5';
    end if;
    call /*:*/settle(json_array(json_array(
        p_item, p_epoch, 4, 0, p_class,
        left(concat(if(p_class in (2, 3), '[INFRA] ', '[BUSINESS] '), coalesce(p_error, '')), 1000), 2147483647)), true);
end
