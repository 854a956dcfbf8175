-- A page of joins, in the order of their ids: see routines/joins.sql.
-- behind this id, grouping key, status, message, limit
call /*:*/joins(?, ?, ?, ?, ?)
