-- Whether a job is not yet completed; completed ones stay until they are old.
select exists (select from pgboss.job where name = 'bench' and state < 'completed')
