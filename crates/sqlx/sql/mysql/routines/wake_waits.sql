-- Makes the messages due that wait for these joins, which are over and locked by the caller. One that somebody holds is
-- left to its holder: who defers it looks at the join again.
-- The caller's transaction may be a user's, whose snapshot may be old. So the waits are read with a lock, which sees the
-- latest; nobody else adds any while the join is locked. What decides about a message is looked at under its own lock.
-- p_joins: a JSON array of ids in hexadecimal. p_now: what time it is for the caller.
create procedure /*:*/wake_waits(in p_joins longtext character set utf8mb4, in p_now datetime(6))
modifies sql data
sql security invoker
begin
    declare v_waits, v_unseen, v_seqs, v_more longtext character set utf8mb4;

    -- The lists below are cut at this length.
    set session group_concat_max_len = 8388608;
    select json_arrayagg(hex(waiting.message_id)) into v_waits from (
        select w.message_id
        from json_table(p_joins, '$[*]' columns (id varchar(32) character set utf8mb4 path '$')) c
        straight_join /*:*/outbox_join_wait w on w.join_id = unhex(c.id)
        where w.continued_at is null
        lock in share mode
    ) waiting;

    if v_waits is not null then
        select concat('[', group_concat(distinct o.seq order by o.seq), ']'),
               concat('["', group_concat(distinct if(o.seq is null, i.id, null) separator '","'), '"]')
        into v_seqs, v_unseen
        from json_table(v_waits, '$[*]' columns (id varchar(32) character set utf8mb4 path '$')) i
        left join /*:*/outbox o force index (/*+*/outbox_message_id) on o.message_id = unhex(i.id);

        select json_arrayagg(seq) into v_seqs from (
            select o.seq
            from json_table(v_seqs, '$[*]' columns (seq bigint path '$')) s
            straight_join /*:*/outbox o force index (primary) on o.seq = s.seq
            where o.state = 0 and o.due_at > p_now and o.due_at < '9999-12-31 23:59:59.999999'
            for update skip locked
        ) held;

        -- Stored after the caller's snapshot, or gone.
        if v_unseen is not null then
            select json_arrayagg(seq) into v_more from (
                select o.seq
                from json_table(v_unseen, '$[*]' columns (id varchar(32) character set utf8mb4 path '$')) i
                straight_join /*:*/outbox o force index (/*+*/outbox_message_id) on o.message_id = unhex(i.id)
                where o.state = 0 and o.due_at > p_now and o.due_at < '9999-12-31 23:59:59.999999'
                for update skip locked
            ) held;
            if v_more is not null then
                set v_seqs = if(v_seqs is null, v_more, json_merge_preserve(v_seqs, v_more));
            end if;
        end if;

        update json_table(v_seqs, '$[*]' columns (seq bigint path '$')) s
        straight_join /*:*/outbox o force index (primary) on o.seq = s.seq
        set o.due_at = p_now;
    end if;
end
