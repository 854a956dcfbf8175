-- Joins: how many steps are awaited, and how many have come to their end. The messages know nothing of them.
create table if not exists /*:*/outbox_join (
    join_id         binary(16) not null,
    grouping_key    varbinary(255),
    status          smallint not null,               -- 0 pending, 1 completed, 2 failed, 3 cancelled, 4 expired
    expected_steps  int not null,
    attached_steps  int not null,
    completed_steps int not null,
    failed_steps    int not null,
    created_at      datetime(6) not null,
    updated_at      datetime(6) not null,            -- when a counter or the status last changed
    ended_at        datetime(6),                     -- when it ceased to be pending
    expires_at      datetime(6),
    metadata        mediumtext character set utf8mb4 collate utf8mb4_bin,
    primary key (join_id),
    key /*+*/outbox_join_grouping_key (grouping_key, join_id),
    key /*+*/outbox_join_expiring (status, expires_at, join_id),
    key /*+*/outbox_join_over (ended_at, join_id)
) engine = InnoDB row_format = dynamic;

-- The steps of joins. No index has the status in it: counting changes the row alone.
create table if not exists /*:*/outbox_join_member (
    join_id         binary(16) not null,
    message_id      binary(16) not null,
    status          smallint not null,               -- 0 pending, 1 completed, 2 failed, 3 late completed, 4 late failed
    created_at      datetime(6) not null,
    updated_at      datetime(6) not null,
    primary key (join_id, message_id),
    key /*+*/outbox_join_member_message_id (message_id, join_id)
) engine = InnoDB row_format = dynamic;

-- The messages that wait for joins.
create table if not exists /*:*/outbox_join_wait (
    join_id         binary(16) not null,
    message_id      binary(16) not null,
    continued_at    datetime(6),                     -- when it sent its continuation
    primary key (join_id, message_id),
    key /*+*/outbox_join_wait_message_id (message_id)
) engine = InnoDB row_format = dynamic;
