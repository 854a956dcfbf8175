-- What a join is now, in the form of routines/joins.sql.
-- $1 join
select * from /*:*/join_answer(0, $1::uuid, null, 0, false)
