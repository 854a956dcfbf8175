-- Takes back that messages had failed, wherever that is still open: what was counted in a join that is over stays.
-- ?1 messages
update /*:*/outbox_join as j
set failed_steps = j.failed_steps - c.failed, updated_at = cast((julianday('now') - 2440587.5) * 86400000000 as integer)
from (
    select m.join_id, count(*) as failed
    from json_each(?1) i cross join /*:*/outbox_join_member m on m.message_id = unhex(i.value)
    where m.status = 2
    group by m.join_id
) c
where j.join_id = c.join_id and j.status = 0;

update /*:*/outbox_join_member as m
set status = 0, updated_at = cast((julianday('now') - 2440587.5) * 86400000000 as integer)
from json_each(?1) i, /*:*/outbox_join j
where m.message_id = unhex(i.value) and j.join_id = m.join_id and (m.status = 4 or (m.status = 2 and j.status = 0))
