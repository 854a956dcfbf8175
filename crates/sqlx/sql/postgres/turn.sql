-- Takes a turn of a job, if it is the caller's: answers with one row, or with none. Of several callers at the same moment
-- one makes or changes the row, and the others look at it again once that is committed.
-- $1 job, $2 so long after its last turn, $3 or the turn of this time (µs), which must have come
insert into /*:*/outbox_job as j (name, at)
select $1::text, coalesce(timestamptz 'epoch' + $3::bigint::float8 * interval '1 microsecond', statement_timestamp())
where coalesce(timestamptz 'epoch' + $3::bigint::float8 * interval '1 microsecond' <= statement_timestamp(), true)
on conflict (name) do update set at = excluded.at
where case when $3::bigint is null then j.at + $2::bigint::float8 * interval '1 microsecond' <= statement_timestamp()
           else j.at < excluded.at end
   -- The clock was put back. A minute, because who waited for this row may be a little behind.
   or j.at > statement_timestamp() + interval '1 minute'
returning true
