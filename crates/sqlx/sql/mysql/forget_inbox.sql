-- Forgets what a consumer received so long ago: see routines/inbox_forget.sql.
-- consumer, kept for (µs), limit
call /*:*/inbox_forget(?, ?, ?)
