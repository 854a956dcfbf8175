-- Ends a join if its deadline has passed; answers it then, with null in front.
create procedure /*:*/expire_join(in p_join binary(16))
modifies sql data
sql security invoker
begin
    declare v_is_ours boolean default false;
    declare exit handler for 1568 signal sqlstate '25001' set message_text = 'this call commits: make it outside of your transaction';
    -- Never ends a transaction that the caller began.
    declare exit handler for sqlexception begin if v_is_ours then rollback and no chain no release; end if; resignal; end;

    set transaction isolation level read committed;
    start transaction;
    set v_is_ours = true;
    call /*:*/expire_joins(1, p_join, utc_timestamp(6));
    commit and no chain no release;
end
