-- The messages that an operator's change is about: see routines/select.sql.
-- true: those that can be requeued, false: those that can be buried; the others as in list.sql
call /*:*/select(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
