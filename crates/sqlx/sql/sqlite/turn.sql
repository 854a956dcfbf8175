-- Takes a turn of a job, if it is the caller's: answers with one row, or with none. One statement takes the write lock
-- before it reads.
-- ?1 job, ?2 so long after its last turn (µs), ?3 or the turn of this time (µs), which must have come
insert into /*:*/outbox_job as j (name, at)
select ?1, coalesce(?3, cast((julianday('now') - 2440587.5) * 86400000000 as integer))
where coalesce(?3 <= cast((julianday('now') - 2440587.5) * 86400000000 as integer), true)
on conflict (name) do update set at = excluded.at
where case when ?3 is null then j.at + ?2 <= cast((julianday('now') - 2440587.5) * 86400000000 as integer) else j.at < excluded.at end
   -- The clock was put back. A minute, because who waited for the write lock may be a little behind.
   or j.at > cast((julianday('now') - 2440587.5) * 86400000000 as integer) + 60000000
returning 1
