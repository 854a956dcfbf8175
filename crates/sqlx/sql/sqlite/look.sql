-- What a join is now, in the form of wait.sql.
-- ?1 join
select j.join_id is null, null, 0, false, j.status, j.expected_steps, j.attached_steps, j.completed_steps,
       j.failed_steps, max(0, j.expires_at - cast((julianday('now') - 2440587.5) * 86400000000 as integer))
from (select ?1 as join_id) a left join /*:*/outbox_join j on j.join_id = a.join_id
