-- What operators did to a message, oldest first.
-- seq
select timestampdiff(microsecond, '1970-01-01', at), action, by_whom, why, attempts, lease_losses, last_error
from /*:*/outbox_history where seq = ? order by id
