-- Whether a task is not yet done; done ones stay until they are vacuumed.
select exists (select from apalis.jobs where job_type = $1 and status <> 'Done')
