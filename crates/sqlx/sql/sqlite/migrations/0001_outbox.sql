-- The queue. One row per message; times are microseconds since 1970 by this machine's clock.
create table /*:*/outbox (
    seq             integer primary key autoincrement,
    message_id      blob not null,
    created_at      integer not null,
    due_at          integer not null,                -- 9223372036854775807: parked
    leased_until    integer,
    expires_at      integer,
    occurred_at     integer,                         -- null: the same as created_at
    done_at         integer,                         -- when it became done or dead
    failing_since   integer,                         -- since when it fails without a break and without charge
    epoch           integer not null,
    attempts        integer not null,
    lease_losses    integer not null,
    state           integer not null,                -- 0 ready, 1 leased, 2 done, 3 dead
    priority        integer not null,                -- smaller goes first
    order_policy    integer not null,                -- 0 block, 1 park, 2 skip
    error_class     integer,
    topic           text not null,
    key             text,
    dedup           blob,                            -- SHA-256 of the caller's dedup key
    content_type    text not null,
    headers         text,                            -- a JSON object of texts
    correlation_id  text,
    aggregate_type  text,
    aggregate_id    text,
    tenant_id       text,
    worker          text,
    done_by         text,
    last_error      text,
    handled         text,                            -- the handlers that are done with it, one a line
    payload         blob not null                    -- opaque: it comes back byte for byte
);

create unique index /*:*/outbox_message_id on /*+*/outbox (message_id);
create unique index /*:*/outbox_dedup on /*+*/outbox (dedup) where dedup is not null;

-- What a claim walks, in the order in which it hands out: clean messages, and suspects apart from them.
create index /*:*/outbox_ready on /*+*/outbox (priority, due_at, seq) where state = 0 and lease_losses = 0;
create index /*:*/outbox_suspect on /*+*/outbox (priority, due_at, seq) where state = 0 and lease_losses > 0;

-- Whether an earlier message of the key is not over yet.
create index /*:*/outbox_key on /*+*/outbox (key, seq)
    where key is not null and (state in (0, 1) or (state = 3 and order_policy <> 2 and error_class not in (6, 8)));

-- What reap, expire, park and prune look for.
create index /*:*/outbox_leased on /*+*/outbox (leased_until, seq) where state = 1;
create index /*:*/outbox_expiring on /*+*/outbox (expires_at, seq) where state = 0 and expires_at is not null;
create index /*:*/outbox_parking on /*+*/outbox (seq)
    where state = 3 and key is not null and order_policy = 1 and error_class not in (6, 8);
create index /*:*/outbox_done on /*+*/outbox (done_at, seq) where state = 2;
create index /*:*/outbox_dead on /*+*/outbox (seq) where state = 3;

-- What operators did to messages.
create table /*:*/outbox_history (
    id              integer primary key autoincrement,
    seq             integer not null,
    at              integer not null,
    action          text not null,
    by_whom         text not null,
    why             text not null,
    attempts        integer not null,
    lease_losses    integer not null,
    last_error      text
);
create index /*:*/outbox_history_seq on /*+*/outbox_history (seq, id);

-- Where messages go when their retention is over and the archive is wanted.
create table /*:*/outbox_archive (
    seq             integer primary key,
    message_id      blob not null,
    created_at      integer not null,
    due_at          integer not null,
    leased_until    integer,
    expires_at      integer,
    occurred_at     integer,
    done_at         integer,
    failing_since   integer,
    epoch           integer not null,
    attempts        integer not null,
    lease_losses    integer not null,
    state           integer not null,
    priority        integer not null,
    order_policy    integer not null,
    error_class     integer,
    topic           text not null,
    key             text,
    dedup           blob,
    content_type    text not null,
    headers         text,
    correlation_id  text,
    aggregate_type  text,
    aggregate_id    text,
    tenant_id       text,
    worker          text,
    done_by         text,
    last_error      text,
    handled         text,
    payload         blob not null
);
create index /*:*/outbox_archive_message_id on /*+*/outbox_archive (message_id);

-- Whose turn it is: when each of the jobs that one process does for all was last taken.
create table /*:*/outbox_job (
    name            text primary key not null,
    at              integer not null
);
