-- Makes messages steps of a join, in the transaction of its caller. The first row that it answers is what happened: 0 done,
-- 1 there is no such join, 2 there is no such message, 3 the join is over, 4 more steps than the join expects.
-- ?1 join, ?2 messages
update /*:*/outbox_join as j
set attached_steps = j.attached_steps + c.new,
    completed_steps = j.completed_steps + c.completed,
    failed_steps = j.failed_steps + c.failed,
    updated_at = case when c.completed + c.failed > 0 then cast((julianday('now') - 2440587.5) * 86400000000 as integer) else j.updated_at end,
    ended_at = case when j.completed_steps + j.failed_steps + c.completed + c.failed >= j.expected_steps then cast((julianday('now') - 2440587.5) * 86400000000 as integer) end,
    status = case when j.completed_steps + j.failed_steps + c.completed + c.failed < j.expected_steps then 0
                  when j.failed_steps + c.failed > 0 then 2
                  else 1 end
from (
    select count(*) as new, count(o.seq) as stored, sum(o.state = 2) as completed, sum(o.state = 3) as failed
    from (
        select distinct unhex(i.value) as message_id from json_each(?2) i
        where not exists (
            select 1 from /*:*/outbox_join_member m where m.join_id = ?1 and m.message_id = unhex(i.value))
    ) n left join /*:*/outbox o on o.message_id = n.message_id
) c
where j.join_id = ?1 and j.status = 0 and c.new > 0 and c.stored = c.new and j.attached_steps + c.new <= j.expected_steps
returning 0, null, (
    select count(distinct i.value) from json_each(?2) i
    where not exists (select 1 from /*:*/outbox_join_member m where m.join_id = ?1 and m.message_id = unhex(i.value))
), status <> 0, status, expected_steps, attached_steps, completed_steps, failed_steps, null;

-- Only if the join has taken them.
insert into /*:*/outbox_join_member (join_id, message_id, status, created_at, updated_at)
select ?1, o.message_id, case o.state when 2 then 1 when 3 then 2 else 0 end, cast((julianday('now') - 2440587.5) * 86400000000 as integer), cast((julianday('now') - 2440587.5) * 86400000000 as integer)
from (select distinct unhex(i.value) as message_id from json_each(?2) i) n
join /*:*/outbox o on o.message_id = n.message_id
where changes() > 0
on conflict do nothing;

-- If the join has ended, what waits for it is due.
update /*:*/outbox
set due_at = cast((julianday('now') - 2440587.5) * 86400000000 as integer)
where changes() > 0 and state = 0 and due_at > cast((julianday('now') - 2440587.5) * 86400000000 as integer) and due_at < 9223372036854775807
  and message_id in (
      select w.message_id from /*:*/outbox_join_wait w join /*:*/outbox_join j on j.join_id = w.join_id
      where w.continued_at is null and j.status <> 0 and w.join_id = ?1);

-- What is no step by now was refused.
select case when j.join_id is null then 1
            when r.missing is not null then 2
            when r.new > 0 and j.status <> 0 then 3
            when r.new > 0 then 4
            else 0 end,
       r.missing, case when r.new > 0 then j.attached_steps + r.new else 0 end, false, j.status, j.expected_steps,
       j.attached_steps, j.completed_steps, j.failed_steps, null
from (
    select count(*) as new, min(case when o.seq is null then n.message_id end) as missing
    from (
        select distinct unhex(i.value) as message_id from json_each(?2) i
        where not exists (
            select 1 from /*:*/outbox_join_member m where m.join_id = ?1 and m.message_id = unhex(i.value))
    ) n left join /*:*/outbox o on o.message_id = n.message_id
) r left join /*:*/outbox_join j on j.join_id = ?1
