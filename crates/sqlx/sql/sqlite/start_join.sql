-- Stores a join; one whose id is stored already is left as it is.
-- ?1 id, ?2 grouping key, ?3 expected steps, ?4 metadata, ?5 whether the expiry counts from now, ?6 expiry (µs)
insert into /*:*/outbox_join (
    join_id, grouping_key, status, expected_steps, attached_steps, completed_steps, failed_steps, created_at, updated_at,
    expires_at, metadata
)
select ?1, ?2, 0, ?3, 0, 0, 0, n.now, n.now, case when ?5 then n.now else 0 end + ?6, ?4
from (select cast((julianday('now') - 2440587.5) * 86400000000 as integer) as now) n
where true
on conflict do nothing
