-- Deletes joins with their steps and waits, in the transaction of its caller, who has locked the joins.
-- p_joins: a JSON array of ids in hexadecimal.
create procedure /*:*/prune_joins(in p_joins longtext character set utf8mb4)
modifies sql data
sql security invoker
begin
    delete m from json_table(p_joins, '$[*]' columns (id varchar(32) character set utf8mb4 path '$')) c
    straight_join /*:*/outbox_join_member m on m.join_id = unhex(c.id);
    delete w from json_table(p_joins, '$[*]' columns (id varchar(32) character set utf8mb4 path '$')) c
    straight_join /*:*/outbox_join_wait w on w.join_id = unhex(c.id);
    delete j from json_table(p_joins, '$[*]' columns (id varchar(32) character set utf8mb4 path '$')) c
    straight_join /*:*/outbox_join j on j.join_id = unhex(c.id);
end
