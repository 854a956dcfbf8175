-- Takes messages that can start now, and answers with them.
--
-- The index outbox_ready serves it: one range (state, lease_losses, priority, due_at <= now) per priority that occurs, in
-- the order of the answer. Candidates are read without a lock and then locked by primary key, where their conditions are
-- looked at again: a locking read along the index keeps the index entries of the rows that it skips, and two claims that
-- do so deadlock. The key is forced: where few are ready, the planner takes that index, which has all columns, even for what
-- is named by its key. What others hold is skipped, and the walk goes on behind it.
--
-- Few keys with long queues would be walked over again and again for the first message of each. So after a round in which too
-- many wait for their turn, but for one time out of fifty only the first message of each key is looked at. Whose turn it is in a
-- key is asked by looking for its first message, not for an earlier one: there the whole queue would be walked to find none.
-- p_topics: a JSON array of topics, in full or as order.*; null means all. p_limit, p_lease_us: null means 50, and 30 s.
create procedure /*:*/claim(
    in p_worker varchar(100) character set utf8mb4, in p_limit int, in p_lease_us bigint,
    in p_topics longtext character set utf8mb4, in p_prefixes longtext character set utf8mb4
)
modifies sql data
sql security invoker
begin
    declare v_now, v_due datetime(6);
    declare v_seqs, v_more, v_heads longtext character set utf8mb4;
    declare v_seq, v_suspect, v_head bigint;
    declare v_key varbinary(255);
    declare v_overdue boolean default false;
    declare v_priority, v_round, v_paused, v_keyed, v_keys, v_own int;
    declare v_may_skip boolean default rand() < 0.98;
    declare v_by_key boolean default false;
    declare v_left int;
    declare v_fault varchar(200) character set utf8mb4;
    declare v_is_ours boolean default false;
    declare exit handler for 1568 signal sqlstate '25001' set message_text = 'this call commits: make it outside of your transaction';
    -- Never ends a transaction that the caller began.
    declare exit handler for sqlexception begin if v_is_ours then rollback and no chain no release; end if; resignal; end;

    set v_left = coalesce(p_limit, 50), p_lease_us = coalesce(p_lease_us, 30000000);
    set p_topics = nullif(p_topics, 'null'), p_prefixes = nullif(p_prefixes, 'null');
    set v_fault = case
        when coalesce(length(p_worker), 0) not between 1 and 100 then 'worker: give it 1 to 100 bytes'
        when v_left not between 1 and 10000 then 'limit: give it 1 to 10000'
        when p_lease_us not between 1000 and 86400000000 then 'lease: give it 1 ms to 24 h, in microseconds'
        when p_topics is not null and if(json_valid(p_topics), json_type(p_topics), '') <> 'ARRAY'
            then 'topics: give a JSON array of texts, or null for all'
        when p_prefixes is not null and if(json_valid(p_prefixes), json_type(p_prefixes), '') <> 'ARRAY'
            then 'beginnings of topics: give a JSON array of texts, or null'
        end;
    if v_fault is not null then
        signal sqlstate '22023' set message_text = v_fault;
    end if;

    set transaction isolation level read committed;
    start transaction;
    set v_is_ours = true;
    -- MariaDB cuts the lists of numbers below at this length.
    set session group_concat_max_len = 1048576;
    set v_now = utc_timestamp(6);

    -- A topic that ends in * is the beginning of one, as in order.*
    if p_topics like '%*"%' then
        select json_merge_preserve(coalesce(p_prefixes, '[]'), json_arrayagg(left(t.name, char_length(t.name) - 1)))
        into p_prefixes
        from json_table(p_topics, '$[*]' columns (name varchar(255) character set utf8mb4 path '$')) t
        where t.name like '%*';
    end if;

    -- Whether anything is paused at all.
    select max(1) into v_paused from /*:*/outbox_pause;

    -- A suspect is taken alone, so that no neighbour is blamed if it kills this worker, too: after the clean ones, but
    -- before them once it has waited for longer than the lease, so that a steady load cannot starve it.
    select json_arrayagg(seq) into v_more from (
        select o.seq from /*:*/outbox o force index (/*+*/outbox_ready)
        where o.state = 0 and o.lease_losses > 0 and o.due_at <= v_now
          and (o.expires_at is null or o.expires_at > v_now)
          and ((p_topics is null and p_prefixes is null)
               or o.topic in (select cast(t.name as binary) from json_table(p_topics, '$[*]' columns (
                                  name varchar(255) character set utf8mb4 path '$')) t)
               or exists (select 1 from json_table(p_prefixes, '$[*]' columns (
                              name varchar(255) character set utf8mb4 path '$')) b
                          where left(o.topic, length(b.name)) = cast(b.name as binary)))
          and (v_paused is null or not exists (
              select 1 from /*:*/outbox_pause p
              where p.topics = o.topic
                 or (right(p.topics, 1) = '*' and left(o.topic, length(p.topics) - 1) = left(p.topics, length(p.topics) - 1))))
          and (o.`key` is null or o.seq = (
              select e.seq from /*:*/outbox e where e.open_key = o.`key` order by e.seq limit 1))
        order by o.priority, o.due_at, o.seq
        limit 50
    ) suspects;
    select o.seq, o.due_at < v_now - interval p_lease_us microsecond into v_suspect, v_overdue
    from json_table(v_more, '$[*]' columns (seq bigint path '$')) s
    straight_join /*:*/outbox o force index (primary) on o.seq = s.seq
    where o.state = 0 and o.due_at <= v_now
    limit 1
    for update skip locked;

    if not v_overdue then
        -- Not `set v = (select ..)`, which is a locking read.
        select min(priority) into v_priority from /*:*/outbox where state = 0 and lease_losses = 0;
        while v_priority is not null and v_left > 0 do
            set v_due = '1970-01-01', v_seq = 0, v_round = 1;
            while v_round > 0 and v_left > 0 do
                set v_round = v_left + 200;
                select json_arrayagg(seq), count(*), count(`key`) into v_more, v_round, v_keyed from (
                    select o.seq, o.`key` from /*:*/outbox o force index (/*+*/outbox_ready)
                    where o.state = 0 and o.lease_losses = 0 and o.priority = v_priority
                      and o.due_at between v_due and v_now and (o.due_at > v_due or o.seq > v_seq)
                      and (o.expires_at is null or o.expires_at > v_now)
                      and ((p_topics is null and p_prefixes is null)
                           or o.topic in (select cast(t.name as binary) from json_table(p_topics, '$[*]' columns (
                                              name varchar(255) character set utf8mb4 path '$')) t)
                           or exists (select 1 from json_table(p_prefixes, '$[*]' columns (
                                          name varchar(255) character set utf8mb4 path '$')) b
                                      where left(o.topic, length(b.name)) = cast(b.name as binary)))
                      and (v_paused is null or not exists (
                          select 1 from /*:*/outbox_pause p
                          where p.topics = o.topic
                             or (right(p.topics, 1) = '*' and left(o.topic, length(p.topics) - 1) = left(p.topics, length(p.topics) - 1))))
                    order by o.due_at, o.seq
                    limit v_round
                ) clean;
                select o.due_at, o.seq into v_due, v_seq
                from json_table(v_more, '$[*]' columns (seq bigint path '$')) s
                straight_join /*:*/outbox o force index (primary) on o.seq = s.seq
                order by o.due_at desc, o.seq desc limit 1;
                if v_keyed > 0 then
                    select json_arrayagg(o.seq) into v_more
                    from json_table(v_more, '$[*]' columns (seq bigint path '$')) s
                    straight_join /*:*/outbox o force index (primary) on o.seq = s.seq
                    where o.`key` is null or o.seq = (
                        select e.seq from /*:*/outbox e where e.open_key = o.`key` order by e.seq limit 1);
                    if v_round = v_left + 200 and coalesce(json_length(v_more), 0) < v_left and v_may_skip then
                        set v_by_key = true, v_may_skip = false;
                        -- One by one: grouping would walk over the whole index if the planner knows the table as a small one.
                        set v_keys = 0, v_key = '', v_heads = '';
                        repeat
                            set v_head = null;
                            select e.open_key, e.seq into v_key, v_head
                            from /*:*/outbox e force index (/*+*/outbox_key) where e.open_key > v_key
                            order by e.open_key, e.seq limit 1;
                            set v_keys = v_keys + 1, v_heads = concat_ws(',', nullif(v_heads, ''), v_head);
                        until v_head is null or v_keys = v_round end repeat;
                        select json_merge_preserve(coalesce(v_more, '[]'), coalesce(json_arrayagg(o.seq), '[]')) into v_more
                        from json_table(concat('[', v_heads, ']'), '$[*]' columns (seq bigint path '$')) h
                        straight_join /*:*/outbox o force index (primary) on o.seq = h.seq
                        where o.state = 0 and o.lease_losses = 0 and o.due_at <= v_now
                          and (o.expires_at is null or o.expires_at > v_now)
                          and ((p_topics is null and p_prefixes is null)
                               or o.topic in (select cast(t.name as binary) from json_table(p_topics, '$[*]' columns (
                                                  name varchar(255) character set utf8mb4 path '$')) t)
                               or exists (select 1 from json_table(p_prefixes, '$[*]' columns (
                                              name varchar(255) character set utf8mb4 path '$')) b
                                          where left(o.topic, length(b.name)) = cast(b.name as binary)))
                          and (v_paused is null or not exists (
                              select 1 from /*:*/outbox_pause p
                              where p.topics = o.topic
                                 or (right(p.topics, 1) = '*'
                                     and left(o.topic, length(p.topics) - 1) = left(p.topics, length(p.topics) - 1))));
                        select json_arrayagg(seq) into v_more from (
                            select distinct s.seq from json_table(v_more, '$[*]' columns (seq bigint path '$')) s
                        ) heads;
                    end if;
                end if;
                -- Locked by primary key, where the state is looked at again; the turn in the key is, further below.
                select json_arrayagg(seq) into v_more from (
                    select o.seq
                    from json_table(v_more, '$[*]' columns (seq bigint path '$')) s
                    straight_join /*:*/outbox o force index (primary) on o.seq = s.seq
                    where o.state = 0 and o.lease_losses = 0 and o.due_at <= v_now
                    limit v_left
                    for update skip locked
                ) locked;
                if v_more is not null then
                    set v_left = v_left - json_length(v_more);
                    set v_seqs = if(v_seqs is null, v_more, json_merge_preserve(v_seqs, v_more));
                end if;
                if v_by_key then
                    -- Who has something to settle, and finds nothing, will ask again when that is done.
                    select max(1) into v_own from (
                        select 1 from /*:*/outbox o where o.state = 1 and o.worker = p_worker limit 1) own;
                    set v_by_key = false;
                    if v_seqs is not null or v_own is not null then
                        set v_left = 0;
                    end if;
                end if;
            end while;
            select min(priority) into v_priority from /*:*/outbox
            where state = 0 and lease_losses = 0 and priority > v_priority;
        end while;
    end if;

    if v_seqs is null and v_suspect is not null then
        set v_seqs = json_array(v_suspect);
    end if;

    -- A candidate may have been seen before its predecessor was, or have been claimed and given back meanwhile: what is
    -- locked now decides.
    select json_arrayagg(seq) into v_seqs from (
        -- One that was found near may have been found once more, by its key.
        select distinct o.seq
        from json_table(v_seqs, '$[*]' columns (seq bigint path '$')) s
        straight_join /*:*/outbox o force index (primary) on o.seq = s.seq
        where o.`key` is null or o.seq = (
            select e.seq from /*:*/outbox e where e.open_key = o.`key` order by e.seq limit 1)
    ) taken;

    update json_table(v_seqs, '$[*]' columns (seq bigint path '$')) s
    straight_join /*:*/outbox o force index (primary) on o.seq = s.seq
    set o.state = 1, o.epoch = o.epoch + 1, o.worker = p_worker,
        o.leased_until = v_now + interval p_lease_us microsecond;

    select o.seq, o.epoch, o.message_id, o.topic, o.`key`, o.order_policy, o.payload, o.content_type, o.headers,
           o.correlation_id, o.aggregate_type, o.aggregate_id, o.tenant_id, o.priority, o.attempts, o.lease_losses,
           timestampdiff(microsecond, '1970-01-01', o.occurred_at) as occurred_at,
           timestampdiff(microsecond, '1970-01-01', o.created_at) as created_at,
           timestampdiff(microsecond, '1970-01-01', o.due_at) as due_at,
           timestampdiff(microsecond, '1970-01-01', o.expires_at) as expires_at,
           timestampdiff(microsecond, '1970-01-01', o.failing_since) as failing_since, o.handled
    from json_table(v_seqs, '$[*]' columns (seq bigint path '$')) s
    straight_join /*:*/outbox o force index (primary) on o.seq = s.seq
    order by o.priority, o.due_at, o.seq;
    commit and no chain no release;
end
