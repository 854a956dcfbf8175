-- Cancels a pending join, in the caller's transaction. Answers as join_answer does; what is refused is an error.
create procedure /*:*/cancel_join(in p_join char(36) character set utf8mb4)
modifies sql data
sql security invoker
call /*:*/end_join(unhex(replace(p_join, '-', '')), true)
