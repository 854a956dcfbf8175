-- Ends a join if its deadline has passed; answers it then, with null in front.
create procedure /*:*/expire_join(in p_join binary(16))
modifies sql data
sql security invoker
begin
    declare exit handler for sqlexception begin rollback; resignal; end;

    set transaction isolation level read committed;
    start transaction;
    call /*:*/expire_joins(1, p_join, utc_timestamp(6));
    commit;
end
