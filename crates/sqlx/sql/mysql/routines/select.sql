-- The messages that an operator's change is about, locked in the order of enqueueing, in the transaction of its caller.
-- p_requeue: those that can be requeued, else those that can be buried; the others as in list.
create procedure /*:*/select(
    in p_requeue boolean, in p_state int, in p_topics longtext character set utf8mb4,
    in p_prefixes longtext character set utf8mb4, in p_key varchar(255) character set utf8mb4,
    in p_tenant varchar(255) character set utf8mb4, in p_correlation varchar(255) character set utf8mb4, in p_class int,
    in p_from_us bigint, in p_before_us bigint, in p_ids longtext character set utf8mb4, in p_limit int
)
modifies sql data
sql security invoker
begin
    declare v_seqs longtext character set utf8mb4;

    -- MariaDB cuts the list of numbers below at this length.
    set session group_concat_max_len = 1048576;
    select json_arrayagg(seq) into v_seqs from (
        select o.seq
        from /*:*/outbox o
        where o.state in (0, 3)
          and (not p_requeue or o.state = 3)
          and (o.state = 0 or p_requeue
               or (o.`key` is not null and o.order_policy <> 2 and o.error_class not in (6, 8)))
          and (p_state is null or o.state = p_state)
          and ((p_topics is null and p_prefixes is null)
               or o.topic in (select cast(t.name as binary) from json_table(p_topics, '$[*]' columns (
                                  name varchar(255) character set utf8mb4 path '$')) t)
               or exists (select 1 from json_table(p_prefixes, '$[*]' columns (
                              name varchar(255) character set utf8mb4 path '$')) b
                          where left(o.topic, length(b.name)) = cast(b.name as binary)))
          and (p_key is null or o.`key` = cast(p_key as binary))
          and (p_tenant is null or o.tenant_id = cast(p_tenant as binary))
          and (p_correlation is null or o.correlation_id = cast(p_correlation as binary))
          and (p_class is null or o.error_class = p_class)
          and (p_from_us is null or o.created_at >= timestamp '1970-01-01 00:00:00' + interval p_from_us microsecond)
          and (p_before_us is null or o.created_at < timestamp '1970-01-01 00:00:00' + interval p_before_us microsecond)
          and (p_ids is null or o.message_id in (select unhex(i.id) from json_table(p_ids, '$[*]' columns (
                   id varchar(32) character set utf8mb4 path '$')) i))
        order by o.seq
        limit p_limit
    ) chosen;

    select o.seq, o.message_id, o.`key`
    from json_table(v_seqs, '$[*]' columns (seq bigint path '$')) s
    straight_join /*:*/outbox o force index (primary) on o.seq = s.seq
    where (p_requeue and o.state = 3)
       or (not p_requeue and (o.state = 0
           or (o.state = 3 and o.`key` is not null and o.order_policy <> 2 and o.error_class not in (6, 8))))
    order by o.seq
    for update;
end
