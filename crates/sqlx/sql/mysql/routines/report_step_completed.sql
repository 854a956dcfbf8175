-- Counts a step as completed by hand, in the caller's transaction. Answers as join_answer does; what is refused is an
-- error.
create procedure /*:*/report_step_completed(
    in p_join char(36) character set utf8mb4, in p_message char(36) character set utf8mb4
)
modifies sql data
sql security invoker
call /*:*/report_step(unhex(replace(p_join, '-', '')), unhex(replace(p_message, '-', '')), 1, true)
