-- Takes messages that can start now, and answers with them.
--
-- The index outbox_ready serves it: one range (state, lease_losses, priority, due_at <= now) per priority that occurs, in
-- the order of the answer. The rows are locked, looked at again, changed and read by primary key. The second look at the
-- keys is needed: a locking read sees what was committed after it began, its subquery does not, and so a message may be
-- seen whose predecessor is not.
create procedure /*:*/claim(
    in p_worker varchar(100) character set utf8mb4, in p_limit int, in p_lease_us bigint,
    in p_topics longtext character set utf8mb4, in p_prefixes longtext character set utf8mb4
)
modifies sql data
sql security invoker
begin
    declare v_now datetime(6);
    declare v_seqs longtext;
    declare v_more longtext;
    declare v_priority int;
    declare v_left int default p_limit;
    declare exit handler for sqlexception begin rollback; resignal; end;

    -- Refused, with an error, if the caller has a transaction open: claiming commits.
    set transaction isolation level read committed;
    start transaction;
    set v_now = utc_timestamp(6);

    -- A suspect that has waited for longer than the lease goes first, so that a steady load cannot starve it.
    select json_arrayagg(seq) into v_seqs from (
        select o.seq from /*:*/outbox o force index (/*+*/outbox_ready)
        where o.state = 0 and o.lease_losses > 0 and o.due_at < v_now - interval p_lease_us microsecond
          and (o.expires_at is null or o.expires_at > v_now)
          and ((p_topics is null and p_prefixes is null)
               or o.topic in (select cast(t.name as binary) from json_table(p_topics, '$[*]' columns (
                                  name varchar(255) character set utf8mb4 path '$')) t)
               or exists (select 1 from json_table(p_prefixes, '$[*]' columns (
                              name varchar(255) character set utf8mb4 path '$')) b
                          where left(o.topic, length(b.name)) = cast(b.name as binary)))
          and (o.`key` is null or not exists (
              select 1 from /*:*/outbox e where e.open_key = o.`key` and e.seq < o.seq))
        order by o.priority, o.due_at, o.seq
        limit 1
        for update skip locked
    ) overdue;

    if v_seqs is null then
        set v_priority = (select min(priority) from /*:*/outbox where state = 0 and lease_losses = 0);
        while v_priority is not null and v_left > 0 do
            select json_arrayagg(seq) into v_more from (
                select o.seq from /*:*/outbox o force index (/*+*/outbox_ready)
                where o.state = 0 and o.lease_losses = 0 and o.priority = v_priority and o.due_at <= v_now
                  and (o.expires_at is null or o.expires_at > v_now)
                  and ((p_topics is null and p_prefixes is null)
                       or o.topic in (select cast(t.name as binary) from json_table(p_topics, '$[*]' columns (
                                          name varchar(255) character set utf8mb4 path '$')) t)
                       or exists (select 1 from json_table(p_prefixes, '$[*]' columns (
                                      name varchar(255) character set utf8mb4 path '$')) b
                                  where left(o.topic, length(b.name)) = cast(b.name as binary)))
                  and (o.`key` is null or not exists (
                      select 1 from /*:*/outbox e where e.open_key = o.`key` and e.seq < o.seq))
                order by o.due_at, o.seq
                limit v_left
                for update skip locked
            ) clean;
            if v_more is not null then
                set v_left = v_left - json_length(v_more);
                set v_seqs = if(v_seqs is null, v_more, json_merge_preserve(v_seqs, v_more));
            end if;
            set v_priority = (select min(priority) from /*:*/outbox
                              where state = 0 and lease_losses = 0 and priority > v_priority);
        end while;
    end if;

    -- A suspect is taken alone: if it kills this worker too, no neighbour is blamed.
    if v_seqs is null then
        select json_arrayagg(seq) into v_seqs from (
            select o.seq from /*:*/outbox o force index (/*+*/outbox_ready)
            where o.state = 0 and o.lease_losses > 0 and o.due_at <= v_now
              and (o.expires_at is null or o.expires_at > v_now)
              and ((p_topics is null and p_prefixes is null)
                   or o.topic in (select cast(t.name as binary) from json_table(p_topics, '$[*]' columns (
                                      name varchar(255) character set utf8mb4 path '$')) t)
                   or exists (select 1 from json_table(p_prefixes, '$[*]' columns (
                                  name varchar(255) character set utf8mb4 path '$')) b
                              where left(o.topic, length(b.name)) = cast(b.name as binary)))
              and (o.`key` is null or not exists (
                  select 1 from /*:*/outbox e where e.open_key = o.`key` and e.seq < o.seq))
            order by o.priority, o.due_at, o.seq
            limit 1
            for update skip locked
        ) suspect;
    end if;

    select json_arrayagg(o.seq) into v_seqs
    from json_table(v_seqs, '$[*]' columns (seq bigint path '$')) s
    straight_join /*:*/outbox o on o.seq = s.seq
    where o.`key` is null or not exists (
        select 1 from /*:*/outbox e where e.open_key = o.`key` and e.seq < o.seq);

    update json_table(v_seqs, '$[*]' columns (seq bigint path '$')) s
    straight_join /*:*/outbox o on o.seq = s.seq
    set o.state = 1, o.epoch = o.epoch + 1, o.worker = p_worker,
        o.leased_until = v_now + interval p_lease_us microsecond;

    select o.seq, o.epoch, o.message_id, o.topic, o.`key`, o.order_policy, o.payload, o.content_type, o.headers,
           o.correlation_id, o.aggregate_type, o.aggregate_id, o.tenant_id, o.priority, o.attempts, o.lease_losses,
           timestampdiff(microsecond, '1970-01-01', o.occurred_at) as occurred_at,
           timestampdiff(microsecond, '1970-01-01', o.created_at) as created_at,
           timestampdiff(microsecond, '1970-01-01', o.due_at) as due_at,
           timestampdiff(microsecond, '1970-01-01', o.expires_at) as expires_at
    from json_table(v_seqs, '$[*]' columns (seq bigint path '$')) s
    straight_join /*:*/outbox o on o.seq = s.seq
    order by o.priority, o.due_at, o.seq;
    commit;
end
