-- How many jobs are still waiting or running.
select count(*) from procrastinate_jobs where status in ('todo', 'doing')
