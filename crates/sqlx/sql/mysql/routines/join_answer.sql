-- What a call about one join answers. Codes: 0 done, 1 there is no such join, 2 there is no such message, or it is not a
-- step of the join, 3 the join is over, 4 more steps than the join expects. moved: how many steps were attached or counted,
-- or with code 4 how many there would be.
-- p_strict: what is refused is an error.
create procedure /*:*/join_answer(
    in p_code int, in p_join binary(16), in p_message binary(16), in p_moved int, in p_ended boolean, in p_strict boolean
)
modifies sql data
sql security invoker
begin
    declare v_fault varchar(100) character set utf8mb4;

    if p_strict and p_code <> 0 then
        set v_fault = case p_code
            when 1 then 'there is no such join: start it first'
            when 2 then 'the message is not stored, or not a step of the join: publish and attach it in one transaction'
            when 3 then 'the join is over: start another'
            else 'the join expects no more steps: start it with as many as it will have'
            end;
        signal sqlstate '22023' set message_text = v_fault;
    end if;

    -- With a lock, which the caller has already: the snapshot of his transaction may be old.
    select p_code as code, p_message as message_id, p_moved as moved, p_ended as ended, j.status, j.expected_steps,
           j.attached_steps, j.completed_steps, j.failed_steps,
           greatest(0, timestampdiff(microsecond, utc_timestamp(6), j.expires_at)) as expires_in_us
    from (select 1 as one) single
    left join /*:*/outbox_join j on j.join_id = p_join
    for update;
end
