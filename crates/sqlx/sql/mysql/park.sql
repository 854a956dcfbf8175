-- Sets aside the due messages of keys that a dead message with the policy park holds back: see routines/park.sql.
-- limit
call /*:*/park(?)
