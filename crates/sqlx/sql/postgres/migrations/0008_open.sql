-- What a mark has passed over may belong to transactions that had been open for long: it holds until one of them ends. Marks are left
-- anew by the next claims.
truncate /*:*/outbox_mark;
alter table /*:*/outbox_mark
    add column if not exists again_at timestamptz not null,  -- when to walk from the beginning if something may be below
    add column if not exists open xid8[] not null,           -- transactions that had been open for long when it was left
    add column if not exists seen xid8 not null,             -- who began to write after seen_at has a higher number
    add column if not exists seen_at timestamptz not null;
