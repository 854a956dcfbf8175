-- Gives up messages that nobody claimed before their expiry: see routines/expire.sql.
-- limit
call /*:*/expire(?)
