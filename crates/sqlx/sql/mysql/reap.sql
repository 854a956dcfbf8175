-- Takes messages back whose lease has run out: see routines/reap.sql.
-- limit, most lease losses
call /*:*/reap(?, ?)
