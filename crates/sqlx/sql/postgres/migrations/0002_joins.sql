-- Joins: how many steps are awaited, and how many have come to their end. The messages know nothing of them.
create table /*:*/outbox_join (
    join_id         uuid primary key,
    grouping_key    text collate "C",
    status          smallint not null,               -- 0 pending, 1 completed, 2 failed, 3 cancelled, 4 expired
    expected_steps  integer not null,
    attached_steps  integer not null,
    completed_steps integer not null,
    failed_steps    integer not null,
    created_at      timestamptz not null,
    updated_at      timestamptz not null,            -- when a counter or the status last changed
    ended_at        timestamptz,                     -- when it ceased to be pending
    expires_at      timestamptz,
    metadata        text
);
create index /*+*/outbox_join_grouping_key on /*:*/outbox_join (grouping_key, join_id) where grouping_key is not null;
create index /*+*/outbox_join_expiring on /*:*/outbox_join (expires_at, join_id)
    where status = 0 and expires_at is not null;
create index /*+*/outbox_join_over on /*:*/outbox_join (ended_at, join_id) where ended_at is not null;

-- The steps of joins.
create table /*:*/outbox_join_member (
    join_id         uuid not null,
    message_id      uuid not null,
    status          smallint not null,               -- 0 pending, 1 completed, 2 failed, 3 late completed, 4 late failed
    created_at      timestamptz not null,
    updated_at      timestamptz not null,
    primary key (join_id, message_id)
);
create index /*+*/outbox_join_member_message_id on /*:*/outbox_join_member (message_id, join_id);

-- The messages that wait for joins.
create table /*:*/outbox_join_wait (
    join_id         uuid not null,
    message_id      uuid not null,
    continued_at    timestamptz,                     -- when it sent its continuation
    primary key (join_id, message_id)
);
create index /*+*/outbox_join_wait_message_id on /*:*/outbox_join_wait (message_id) where continued_at is null;
