-- The session whose transaction locked the message's row last, if that transaction is open. Several that share the lock have a number
-- together, which is no transaction's.
-- $1 message id
select l.pid::text, a.usename::text, a.application_name, host(a.client_addr), a.state, a.xact_start
from /*:*/outbox o
join pg_catalog.pg_locks l on l.locktype = 'transactionid' and l.transactionid = o.xmax and l.mode = 'ExclusiveLock' and l.granted
left join pg_catalog.pg_stat_activity a on a.pid = l.pid
where o.message_id = $1::uuid
limit 1
