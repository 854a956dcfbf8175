-- Takes messages back whose lease has run out: ready again, or dead at the last loss. Which ones may be concerned is read
-- without a lock; the change itself, by primary key, is conditional and decides.
create procedure /*:*/reap(in p_limit int, in p_max_losses int)
modifies sql data
sql security invoker
begin
    declare v_now datetime(6);
    declare v_seqs longtext character set utf8mb4;
    declare v_ready, v_dead int;
    declare exit handler for sqlexception begin rollback; resignal; end;

    set transaction isolation level read committed;
    start transaction;
    -- MariaDB cuts the lists of numbers below at this length.
    set session group_concat_max_len = 1048576;
    set v_now = utc_timestamp(6);

    select json_arrayagg(seq) into v_seqs from (
        select seq from /*:*/outbox force index (/*+*/outbox_leased)
        where state = 1 and leased_until < v_now
        order by leased_until, seq
        limit p_limit
    ) lost;

    update json_table(v_seqs, '$[*]' columns (seq bigint path '$')) s
    straight_join /*:*/outbox o on o.seq = s.seq
    set o.done_at = v_now, o.error_class = 7, o.last_error = 'crash suspect', o.state = 3, o.leased_until = null,
        o.lease_losses = o.lease_losses + 1
    where o.state = 1 and o.leased_until < v_now and o.lease_losses + 1 >= p_max_losses;
    set v_dead = row_count();

    update json_table(v_seqs, '$[*]' columns (seq bigint path '$')) s
    straight_join /*:*/outbox o on o.seq = s.seq
    set o.due_at = v_now, o.state = 0, o.leased_until = null, o.lease_losses = o.lease_losses + 1
    where o.state = 1 and o.leased_until < v_now and o.lease_losses + 1 < p_max_losses;
    set v_ready = row_count();
    commit;
    select v_ready as ready, v_dead as dead;
end
