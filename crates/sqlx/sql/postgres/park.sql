-- Sets aside the due messages of keys that a dead message with the policy park holds back: see routines/keep.sql.
-- $1 limit
select /*:*/park($1::bigint)
