-- Gives up messages that nobody claimed before their expiry.
-- limit
update /*:*/outbox
set done_at = utc_timestamp(6), error_class = 6, last_error = 'expired', state = 3,
    due_at = if(due_at = '9999-12-31 23:59:59.999999', utc_timestamp(6), due_at)
where state = 0 and expires_at <= utc_timestamp(6)
order by expires_at, seq
limit ?
