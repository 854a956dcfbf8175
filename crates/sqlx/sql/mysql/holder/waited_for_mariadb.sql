-- For whom a session waits: the other's number, user, host, what it is doing, and since when its transaction is open, which is told
-- in the time zone of the server's machine.
-- number of the session that waits
select cast(b.trx_mysql_thread_id as char), cast(p.user as char), cast(p.host as char), cast(p.command as char),
       timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))
       - 1000000 * timestampdiff(second, b.trx_started, convert_tz(utc_timestamp(), '+00:00', 'SYSTEM'))
from information_schema.innodb_trx r
join information_schema.innodb_lock_waits w on w.requesting_trx_id = r.trx_id
join information_schema.innodb_trx b on b.trx_id = w.blocking_trx_id
left join information_schema.processlist p on p.id = b.trx_mysql_thread_id
where r.trx_mysql_thread_id = ?
order by b.trx_started
limit 1
