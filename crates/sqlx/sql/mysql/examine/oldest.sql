-- The oldest open transaction of anybody else: its age in seconds, its session, user and host. Its beginning is told in the time
-- zone of the server's machine.
select cast(timestampdiff(second, t.trx_started, convert_tz(utc_timestamp(), '+00:00', 'SYSTEM')) as char),
       cast(t.trx_mysql_thread_id as char), cast(p.user as char), cast(p.host as char)
from information_schema.innodb_trx t
left join information_schema.processlist p on p.id = t.trx_mysql_thread_id
where t.trx_mysql_thread_id <> connection_id()
order by t.trx_started
limit 1
