-- What decides whether a commit outlives a crash, and whether it has reached the binary log by then.
select cast(@@innodb_flush_log_at_trx_commit as char), cast(@@innodb_doublewrite as char), cast(@@log_bin as char),
       cast(@@sync_binlog as char)
