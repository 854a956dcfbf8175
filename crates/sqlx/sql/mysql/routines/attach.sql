-- Makes a message a step of a join, in the caller's transaction. Answers as join_answer does; what is refused is an error.
create procedure /*:*/attach(in p_join char(36) character set utf8mb4, in p_message char(36) character set utf8mb4)
modifies sql data
sql security invoker
call /*:*/attach_steps(
    unhex(replace(p_join, '-', '')), json_array(coalesce(replace(p_message, '-', ''), '')), true)
