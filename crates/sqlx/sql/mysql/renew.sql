-- Lets leases last from now: see routines/renew.sql.
-- leases, lease (µs)
call /*:*/renew(?, ?)
