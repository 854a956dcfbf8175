-- Locks are waited for a second.
set session innodb_lock_wait_timeout = 1
