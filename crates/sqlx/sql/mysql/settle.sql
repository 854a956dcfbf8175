-- Applies outcomes to leased messages: see routines/settle.sql.
-- settlements, whether done are kept
call /*:*/settle(?, ?)
