-- The queue. One row per message; times are UTC by this server's clock. Names are binary strings, because every text
-- collation that MySQL and MariaDB share takes 'a' and 'a ' for the same.
create table if not exists /*:*/outbox (
    seq             bigint not null auto_increment,
    message_id      binary(16) not null,
    created_at      datetime(6) not null,
    due_at          datetime(6) not null,            -- 9999-12-31 23:59:59.999999: parked
    leased_until    datetime(6),
    expires_at      datetime(6),
    occurred_at     datetime(6),                     -- null: the same as created_at
    done_at         datetime(6),                     -- when it became done or dead
    failing_since   datetime(6),                     -- since when it fails without a break and without charge
    epoch           int not null,
    attempts        int not null,
    lease_losses    int not null,
    state           smallint not null,               -- 0 ready, 1 leased, 2 done, 3 dead
    priority        smallint not null,               -- smaller goes first
    order_policy    smallint not null,               -- 0 block, 1 park, 2 skip
    error_class     smallint,
    topic           varbinary(255) not null,
    `key`           varbinary(255),
    dedup           binary(32),                      -- SHA-256 of the caller's dedup key
    payload         longblob not null,               -- opaque: never json, so that it comes back byte for byte
    content_type    varchar(127) character set utf8mb4 collate utf8mb4_bin not null,
    headers         mediumtext character set utf8mb4 collate utf8mb4_bin,
    correlation_id  varbinary(255),
    aggregate_type  varbinary(255),
    aggregate_id    varbinary(255),
    tenant_id       varbinary(255),
    worker          varchar(100) character set utf8mb4 collate utf8mb4_bin,    -- the last holder of a lease
    done_by         varchar(100) character set utf8mb4 collate utf8mb4_bin,
    last_error      text character set utf8mb4 collate utf8mb4_bin,
    handled         mediumtext character set utf8mb4 collate utf8mb4_bin,    -- the handlers that are done with it, one a line
    -- The key while the message is not over, else null: an index of it holds no done message.
    open_key        varbinary(255) as (
        case when state in (0, 1) or (state = 3 and order_policy <> 2 and error_class not in (6, 8)) then `key` end
    ) virtual,
    -- Keeps the messages without a dedup key at the end of its index: next to the first hash, where nulls are by
    -- themselves, their inserts would deadlock with a transaction that waits for that hash.
    no_dedup        boolean as (dedup is null) virtual,
    primary key (seq),
    unique key /*+*/outbox_message_id (message_id),
    unique key /*+*/outbox_dedup (no_dedup, dedup),
    -- What a claim walks, in the order in which it hands out: clean messages, then suspects.
    key /*+*/outbox_ready (state, lease_losses, priority, due_at, seq),
    -- Whether an earlier message of the key is not over yet.
    key /*+*/outbox_key (open_key, seq),
    -- What reap, expire, prune and operators look for.
    key /*+*/outbox_leased (state, leased_until, seq),
    key /*+*/outbox_expiring (state, expires_at, seq),
    key /*+*/outbox_done (state, done_at, seq),
    key /*+*/outbox_state (state, seq)
) engine = InnoDB row_format = dynamic;

-- What operators did to messages.
create table if not exists /*:*/outbox_history (
    id              bigint not null auto_increment,
    seq             bigint not null,
    at              datetime(6) not null,
    action          varchar(20) character set utf8mb4 collate utf8mb4_bin not null,
    by_whom         varchar(100) character set utf8mb4 collate utf8mb4_bin not null,
    why             varchar(1000) character set utf8mb4 collate utf8mb4_bin not null,
    attempts        int not null,
    lease_losses    int not null,
    last_error      text character set utf8mb4 collate utf8mb4_bin,
    primary key (id),
    key /*+*/outbox_history_seq (seq, id)
) engine = InnoDB row_format = dynamic;

-- Where messages go when their retention is over and the archive is wanted.
create table if not exists /*:*/outbox_archive (
    seq             bigint not null,
    message_id      binary(16) not null,
    created_at      datetime(6) not null,
    due_at          datetime(6) not null,
    leased_until    datetime(6),
    expires_at      datetime(6),
    occurred_at     datetime(6),
    done_at         datetime(6),
    failing_since   datetime(6),
    epoch           int not null,
    attempts        int not null,
    lease_losses    int not null,
    state           smallint not null,
    priority        smallint not null,
    order_policy    smallint not null,
    error_class     smallint,
    topic           varbinary(255) not null,
    `key`           varbinary(255),
    dedup           binary(32),
    payload         longblob not null,
    content_type    varchar(127) character set utf8mb4 collate utf8mb4_bin not null,
    headers         mediumtext character set utf8mb4 collate utf8mb4_bin,
    correlation_id  varbinary(255),
    aggregate_type  varbinary(255),
    aggregate_id    varbinary(255),
    tenant_id       varbinary(255),
    worker          varchar(100) character set utf8mb4 collate utf8mb4_bin,
    done_by         varchar(100) character set utf8mb4 collate utf8mb4_bin,
    last_error      text character set utf8mb4 collate utf8mb4_bin,
    handled         mediumtext character set utf8mb4 collate utf8mb4_bin,
    primary key (seq),
    key /*+*/outbox_archive_message_id (message_id)
) engine = InnoDB row_format = dynamic;

-- Whose turn it is: when each of the jobs that one process does for all was last taken.
create table if not exists /*:*/outbox_job (
    name            varbinary(255) not null,
    at              datetime(6) not null,            -- 1000-01-01: never
    primary key (name)
) engine = InnoDB row_format = dynamic;
