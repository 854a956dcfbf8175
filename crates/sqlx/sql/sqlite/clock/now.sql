-- What time it is, in microseconds since 1970.
select cast((julianday('now') - 2440587.5) * 86400000000 as integer)
