-- Counts what became of messages in every join that they are pending steps of, and answers the joins that end by it: in
-- the one transaction that its caller holds.
-- ?1 messages and what became of each, [[id, 1 done | 2 dead | 0 deferred], ..], ?2 what time it is, if the caller has
-- looked already
update /*:*/outbox_join as j
set completed_steps = j.completed_steps + c.completed,
    failed_steps = j.failed_steps + c.failed,
    updated_at = coalesce(?2, cast((julianday('now') - 2440587.5) * 86400000000 as integer)),
    ended_at = case when j.completed_steps + j.failed_steps + c.completed + c.failed >= j.expected_steps
                    then coalesce(?2, cast((julianday('now') - 2440587.5) * 86400000000 as integer)) end,
    status = case when j.completed_steps + j.failed_steps + c.completed + c.failed < j.expected_steps then 0
                  when j.failed_steps + c.failed > 0 then 2
                  else 1 end
from (
    select m.join_id, sum(json_extract(e.value, '$[1]') = 1) as completed, sum(json_extract(e.value, '$[1]') = 2) as failed
    from json_each(?1) e cross join /*:*/outbox_join_member m on m.message_id = unhex(json_extract(e.value, '$[0]'))
    where m.status = 0 and json_extract(e.value, '$[1]') <> 0
    group by m.join_id
) c
where j.join_id = c.join_id and j.status = 0;

-- Those that ended are the ones that are over and have pending steps: only a cancelled or expired join has any left.
select distinct null, j.join_id, j.status, j.expected_steps, j.completed_steps, j.failed_steps
from json_each(?1) e
cross join /*:*/outbox_join_member m on m.message_id = unhex(json_extract(e.value, '$[0]'))
cross join /*:*/outbox_join j on j.join_id = m.join_id
where m.status = 0 and json_extract(e.value, '$[1]') <> 0 and j.status in (1, 2)
order by j.join_id;

-- What waits for them is due.
update /*:*/outbox
set due_at = coalesce(?2, cast((julianday('now') - 2440587.5) * 86400000000 as integer))
where state = 0 and due_at > coalesce(?2, cast((julianday('now') - 2440587.5) * 86400000000 as integer)) and due_at < 9223372036854775807
  and message_id in (
      select w.message_id
      from json_each(?1) e
      cross join /*:*/outbox_join_member m on m.message_id = unhex(json_extract(e.value, '$[0]'))
      cross join /*:*/outbox_join j on j.join_id = m.join_id
      cross join /*:*/outbox_join_wait w on w.join_id = j.join_id
      where m.status = 0 and json_extract(e.value, '$[1]') <> 0 and j.status in (1, 2) and w.continued_at is null);

update /*:*/outbox_join_member as m
set status = json_extract(e.value, '$[1]') + case when j.status in (3, 4) then 2 else 0 end,
    updated_at = coalesce(?2, cast((julianday('now') - 2440587.5) * 86400000000 as integer))
from json_each(?1) e, /*:*/outbox_join j
where m.message_id = unhex(json_extract(e.value, '$[0]')) and m.status = 0 and json_extract(e.value, '$[1]') <> 0 and j.join_id = m.join_id;

-- So is what was deferred while it waits for a join that is over by now.
update /*:*/outbox
set due_at = coalesce(?2, cast((julianday('now') - 2440587.5) * 86400000000 as integer))
where message_id in (
    select w.message_id
    from json_each(?1) e
    cross join /*:*/outbox_join_wait w on w.message_id = unhex(json_extract(e.value, '$[0]'))
    cross join /*:*/outbox_join j on j.join_id = w.join_id
    where json_extract(e.value, '$[1]') = 0 and w.continued_at is null and j.status <> 0)
