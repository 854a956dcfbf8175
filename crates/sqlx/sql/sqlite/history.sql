-- What operators did to a message, oldest first.
-- ?1 seq
select at, action, by_whom, why, attempts, lease_losses, last_error
from /*:*/outbox_history where seq = ?1 order by id
