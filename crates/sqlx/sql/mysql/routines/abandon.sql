-- Failed: again after the delay, or dead at the last attempt. Answers 0 applied, 1 lost, 2 gone.
-- Null means the default: class 1, 10 attempts, a delay of min(2^attempts s, 60 s) times a jitter of a half to one and a half.
-- p_class: 1 business, 2 infrastructure, 3 unroutable (these two cost no attempt), 4 permanent, 5 too large.
create procedure /*:*/abandon(
    in p_item bigint, in p_epoch int, in p_error text character set utf8mb4, in p_delay_us bigint, in p_class int,
    in p_max_attempts int
)
modifies sql data
sql security invoker
begin
    set p_class = coalesce(p_class, 1), p_max_attempts = coalesce(p_max_attempts, 10);
    if not coalesce(p_class between 1 and 5 and p_max_attempts >= 1 and coalesce(p_delay_us, 0) between 0 and 3153600000000000, false) then
        signal sqlstate '22023' set message_text = 'give a class of 1 to 5, at least 1 attempt, and a delay of at most 100 years or null';
    end if;
    if p_delay_us is null then
        select cast(least(pow(2, least(attempts + 1, 10)), 60) * (0.5 + rand()) * 1000000 as signed)
        into p_delay_us from /*:*/outbox where seq = p_item;
    end if;
    call /*:*/settle(json_array(json_array(
        p_item, p_epoch, 1, coalesce(p_delay_us, 0), p_class,
        left(concat(if(p_class in (2, 3), '[INFRA] ', '[BUSINESS] '), coalesce(p_error, '')), 1000),
        p_max_attempts)), true);
end
