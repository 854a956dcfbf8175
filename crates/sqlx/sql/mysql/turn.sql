-- Takes a turn of a job, if it is the caller's: see routines/turn.sql.
-- job, so long after its last turn (µs), or the turn of this time (µs), which must have come
call /*:*/turn(?, ?, ?)
