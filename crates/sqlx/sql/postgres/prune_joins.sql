-- Deletes joins with their steps and waits.
-- $1 joins
with steps as (
    delete from /*:*/outbox_join_member where join_id = any($1::uuid[])
),
waits as (
    delete from /*:*/outbox_join_wait where join_id = any($1::uuid[])
)
delete from /*:*/outbox_join where join_id = any($1::uuid[])
