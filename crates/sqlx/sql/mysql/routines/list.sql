-- Records in the order of enqueueing; whatever parameter is null does not matter. A routine, because its parameters are
-- constants to the planner, which can then choose the index by what is asked for.
create procedure /*:*/list(
    in p_after bigint, in p_state int, in p_topics longtext character set utf8mb4,
    in p_prefixes longtext character set utf8mb4, in p_key varchar(255) character set utf8mb4,
    in p_tenant varchar(255) character set utf8mb4, in p_correlation varchar(255) character set utf8mb4, in p_class int,
    in p_from_us bigint, in p_before_us bigint, in p_ids longtext character set utf8mb4, in p_limit int
)
reads sql data
sql security invoker
begin
    select o.seq, o.epoch, o.message_id, o.topic, o.`key`, o.order_policy, o.payload, o.content_type, o.headers,
           o.correlation_id, o.aggregate_type, o.aggregate_id, o.tenant_id, o.priority, o.attempts, o.lease_losses,
           timestampdiff(microsecond, '1970-01-01', o.occurred_at), timestampdiff(microsecond, '1970-01-01', o.created_at),
           timestampdiff(microsecond, '1970-01-01', o.due_at), timestampdiff(microsecond, '1970-01-01', o.expires_at),
           timestampdiff(microsecond, '1970-01-01', o.failing_since), o.handled,
           o.state, o.due_at = '9999-12-31 23:59:59.999999' as parked,
           timestampdiff(microsecond, '1970-01-01', o.leased_until), if(o.state = 1, o.worker, null) as worker,
           timestampdiff(microsecond, '1970-01-01', o.done_at), o.done_by, o.error_class, o.last_error
    from /*:*/outbox o
    where o.seq > p_after
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
    limit p_limit;
end
