-- How many connections to this database there are beside this one, and not counting what vacuums it.
select count(*) from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
