-- Where the write-ahead log is, how many transactions others have committed, and which process this is.
select (pg_current_wal_insert_lsn() - '0/0')::float8,
       coalesce((select sum(xact_commit) from pg_stat_database where datname <> current_database()), 0)::float8,
       pg_backend_pid()
