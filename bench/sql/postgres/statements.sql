-- How many statements clients have sent to this database, as the extension pg_stat_statements counts them.
select coalesce(sum(calls), 0)::float8 from pg_stat_statements
where toplevel and dbid = (select oid from pg_database where datname = current_database())
