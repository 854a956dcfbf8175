-- Takes messages back whose lease has run out: ready again, or dead at the last loss. Which ones may be concerned is read
-- without a lock; the change itself, by primary key, is conditional and decides. The last column says how many are dead;
-- joins that end by it follow as a second answer, with null in front.
create procedure /*:*/reap(in p_limit int, in p_max_losses int)
modifies sql data
sql security invoker
begin
    declare v_now datetime(6);
    declare v_seqs, v_ends longtext character set utf8mb4;
    declare v_ready, v_dead int;
    declare v_newest binary(16);
    declare v_is_ours boolean default false;
    declare exit handler for 1568 signal sqlstate '25001' set message_text = 'this call commits: make it outside of your transaction';
    -- Never ends a transaction that the caller began.
    declare exit handler for sqlexception begin if v_is_ours then rollback and no chain no release; end if; resignal; end;

    set p_limit = coalesce(p_limit, 1000), p_max_losses = coalesce(p_max_losses, 5);
    set transaction isolation level read committed;
    start transaction;
    set v_is_ours = true;
    -- MariaDB cuts the lists of numbers below at this length.
    set session group_concat_max_len = 1048576;
    set v_now = utc_timestamp(6);

    select json_arrayagg(seq) into v_seqs from (
        select seq from /*:*/outbox force index (/*+*/outbox_leased)
        where state = 1 and leased_until < v_now
        order by leased_until, seq
        limit p_limit
    ) lost;
    -- What another session has locked waits for the next time.
    select json_arrayagg(seq) into v_seqs from (
        select o.seq
        from json_table(v_seqs, '$[*]' columns (seq bigint path '$')) s
        straight_join /*:*/outbox o force index (primary) on o.seq = s.seq
        where o.state = 1 and o.leased_until < v_now
        for update skip locked
    ) free;

    update json_table(v_seqs, '$[*]' columns (seq bigint path '$')) s
    straight_join /*:*/outbox o force index (primary) on o.seq = s.seq
    set o.done_at = v_now, o.error_class = 7, o.last_error = 'crash suspect', o.state = 3, o.leased_until = null,
        o.lease_losses = o.lease_losses + 1
    where o.state = 1 and o.leased_until < v_now and o.lease_losses + 1 >= p_max_losses;
    set v_dead = row_count();

    update json_table(v_seqs, '$[*]' columns (seq bigint path '$')) s
    straight_join /*:*/outbox o force index (primary) on o.seq = s.seq
    set o.due_at = v_now, o.state = 0, o.leased_until = null, o.lease_losses = o.lease_losses + 1
    where o.state = 1 and o.leased_until < v_now and o.lease_losses + 1 < p_max_losses;
    set v_ready = row_count();
    select v_ready as ready, null as join_id, null as status, null as expected_steps, null as completed_steps,
           null as failed_steps, v_dead as dead;

    if v_dead > 0 then
        select max(join_id) into v_newest from /*:*/outbox_join;
    end if;
    if v_newest is not null then
        select json_arrayagg(json_array(hex(o.message_id), 2)) into v_ends
        from json_table(v_seqs, '$[*]' columns (seq bigint path '$')) s
        straight_join /*:*/outbox o force index (primary) on o.seq = s.seq
        where o.state = 3 and o.error_class = 7 and o.done_at = v_now;
        call /*:*/count_steps(v_ends, v_now);
    end if;
    commit and no chain no release;
end
