-- What InnoDB has written to its log and read from its pages, and how many transactions there were.
select variable_name, cast(variable_value as double)
from information_schema.global_status
where variable_name in ('INNODB_OS_LOG_WRITTEN', 'INNODB_BUFFER_POOL_READ_REQUESTS', 'COM_COMMIT', 'QUESTIONS')
