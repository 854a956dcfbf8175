-- A page of joins, in the order of their ids; whatever parameter is null does not matter. A routine, because its parameters
-- are constants to the planner, which can then choose the index by what is asked for.
create procedure /*:*/joins(
    in p_after binary(16), in p_grouping_key varchar(255) character set utf8mb4, in p_status int, in p_message binary(16),
    in p_limit int
)
reads sql data
sql security invoker
begin
    if p_message is null then
        select j.join_id, j.grouping_key, j.status, j.expected_steps, j.attached_steps, j.completed_steps, j.failed_steps,
               j.metadata, timestampdiff(microsecond, '1970-01-01', j.created_at),
               timestampdiff(microsecond, '1970-01-01', j.updated_at),
               timestampdiff(microsecond, '1970-01-01', j.ended_at),
               timestampdiff(microsecond, '1970-01-01', j.expires_at)
        from /*:*/outbox_join j
        where (p_after is null or j.join_id > p_after)
          and (p_grouping_key is null or j.grouping_key = cast(p_grouping_key as binary))
          and (p_status is null or j.status = p_status)
        order by j.join_id
        limit p_limit;
    else
        select j.join_id, j.grouping_key, j.status, j.expected_steps, j.attached_steps, j.completed_steps, j.failed_steps,
               j.metadata, timestampdiff(microsecond, '1970-01-01', j.created_at),
               timestampdiff(microsecond, '1970-01-01', j.updated_at),
               timestampdiff(microsecond, '1970-01-01', j.ended_at),
               timestampdiff(microsecond, '1970-01-01', j.expires_at)
        from /*:*/outbox_join_member m force index (/*+*/outbox_join_member_message_id)
        straight_join /*:*/outbox_join j on j.join_id = m.join_id
        where m.message_id = p_message
          and (p_after is null or m.join_id > p_after)
          and (p_grouping_key is null or j.grouping_key = cast(p_grouping_key as binary))
          and (p_status is null or j.status = p_status)
        order by m.join_id
        limit p_limit;
    end if;
end
