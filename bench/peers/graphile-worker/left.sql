-- Whether a job is still there; completed ones are gone.
select exists (select from graphile_worker._private_jobs)
