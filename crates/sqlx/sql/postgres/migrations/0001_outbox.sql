-- The queue. One row per message; every time is this database's own.
create table /*:*/outbox (
    seq             bigint generated always as identity primary key,
    message_id      uuid not null,
    created_at      timestamptz not null,
    due_at          timestamptz not null,            -- infinity: parked
    leased_until    timestamptz,
    expires_at      timestamptz,
    occurred_at     timestamptz,                     -- null: the same as created_at
    done_at         timestamptz,                     -- when it became done or dead
    failing_since   timestamptz,                     -- since when it fails without a break and without charge
    epoch           integer not null,
    attempts        integer not null,
    lease_losses    integer not null,
    state           smallint not null,               -- 0 ready, 1 leased, 2 done, 3 dead
    priority        smallint not null,               -- smaller goes first
    order_policy    smallint not null,               -- 0 block, 1 park, 2 skip
    error_class     smallint,
    topic           text collate "C" not null,
    key             text collate "C",
    dedup           bytea,                           -- SHA-256 of the caller's dedup key
    payload         bytea not null,                  -- opaque: never json, so that it comes back byte for byte
    content_type    text not null,
    headers         text,                            -- a JSON object of texts
    correlation_id  text collate "C",
    aggregate_type  text collate "C",
    aggregate_id    text collate "C",
    tenant_id       text collate "C",
    worker          text,
    done_by         text,
    last_error      text,
    handled         text                             -- the handlers that are done with it, one a line
);

create unique index /*+*/outbox_message_id on /*:*/outbox (message_id);
create unique index /*+*/outbox_dedup on /*:*/outbox (dedup) where dedup is not null;

-- What a claim walks, in the order in which it hands out: clean messages, and suspects apart from them.
create index /*+*/outbox_ready on /*:*/outbox (priority, due_at, seq) where state = 0 and lease_losses = 0;
create index /*+*/outbox_suspect on /*:*/outbox (priority, due_at, seq) where state = 0 and lease_losses > 0;

-- Whether an earlier message of the key is not over yet.
create index /*+*/outbox_key on /*:*/outbox (key, seq)
    where key is not null and (state in (0, 1) or (state = 3 and order_policy <> 2 and error_class not in (6, 8)));

-- What reap, expire, park and prune look for.
create index /*+*/outbox_leased on /*:*/outbox (leased_until, seq) where state = 1;
create index /*+*/outbox_expiring on /*:*/outbox (expires_at, seq) where state = 0 and expires_at is not null;
create index /*+*/outbox_parking on /*:*/outbox (seq)
    where state = 3 and key is not null and order_policy = 1 and error_class not in (6, 8);
create index /*+*/outbox_done on /*:*/outbox (done_at, seq) where state = 2;
create index /*+*/outbox_dead on /*:*/outbox (seq) where state = 3;

-- A queue changes faster than the defaults expect: vacuum it by what changed, not by a share of its size.
alter table /*:*/outbox set (
    autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 10000,
    autovacuum_analyze_scale_factor = 0.0, autovacuum_analyze_threshold = 10000
);

-- What operators did to messages.
create table /*:*/outbox_history (
    id              bigint generated always as identity primary key,
    seq             bigint not null,
    at              timestamptz not null,
    action          text not null,
    by_whom         text not null,
    why             text not null,
    attempts        integer not null,
    lease_losses    integer not null,
    last_error      text
);
create index /*+*/outbox_history_seq on /*:*/outbox_history (seq, id);

-- Where messages go when their retention is over and the archive is wanted.
create table /*:*/outbox_archive (like /*:*/outbox);
alter table /*:*/outbox_archive add primary key (seq);
create index /*+*/outbox_archive_message_id on /*:*/outbox_archive (message_id);

-- Whose turn it is: when each of the jobs that one process does for all was last taken.
create table /*:*/outbox_job (
    name            text collate "C" primary key,
    at              timestamptz not null
);
