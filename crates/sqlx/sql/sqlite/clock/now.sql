-- What time it is, in microseconds since 1970.
select cast(unixepoch('subsec') * 1000000 as integer)
