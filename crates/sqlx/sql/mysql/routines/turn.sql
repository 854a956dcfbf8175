-- Takes a turn of a job, if it is the caller's: answers with one row, or with none.
-- p_period_us: so long after its last turn; or p_at_us: the turn of this time, which must have come.
create procedure /*:*/turn(in p_job varchar(255) character set utf8mb4, in p_period_us bigint, in p_at_us bigint)
modifies sql data
sql security invoker
begin
    declare v_now, v_at datetime(6);
    declare v_mine int default 0;
    declare v_is_ours boolean default false;
    declare exit handler for 1568 signal sqlstate '25001' set message_text = 'this call commits: make it outside of your transaction';
    -- Never ends a transaction that the caller began.
    declare exit handler for sqlexception begin if v_is_ours then rollback and no chain no release; end if; resignal; end;

    if p_job is null or (p_period_us is null) = (p_at_us is null) then
        signal sqlstate '22023' set message_text = 'give a job, and either a period or a time, in microseconds';
    end if;

    set transaction isolation level read committed;
    start transaction;
    set v_is_ours = true;
    set v_now = utc_timestamp(6);
    set v_at = coalesce(timestamp '1970-01-01 00:00:00' + interval p_at_us microsecond, v_now);

    if v_at <= v_now then
        -- Makes the row if there is none, and locks it in any case, so that two callers cannot deadlock over who is first.
        insert into /*:*/outbox_job (name, at) values (cast(p_job as binary), '1000-01-01')
        on duplicate key update name = name;
        update /*:*/outbox_job
        set at = v_at
        where name = cast(p_job as binary)
          and (at = '1000-01-01'
               -- The clock was put back. A minute, because who waited for this row may be a little behind.
               or at > v_now + interval 1 minute
               or if(p_at_us is null, at + interval p_period_us microsecond <= v_now, at < v_at));
        set v_mine = row_count();
    end if;
    commit and no chain no release;
    select true as mine from (select 1 as one) single where v_mine > 0;
end
