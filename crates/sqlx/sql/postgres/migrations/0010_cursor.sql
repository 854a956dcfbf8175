-- Claims without a gate: a claim locks rows, looks again, and writes one lease under a random token. See ADR 0033.

-- Messages that were published to be delivered at once, in the order of the transactions that wrote them. They only ever leave
-- this order: a message that comes back, or that is due later, has no born and waits by its due time.
alter table /*:*/outbox add column born xid8 default '0';
alter table /*:*/outbox alter column born set default pg_current_xact_id();
alter table /*:*/outbox_archive add column born xid8;

-- Leases move into the rows: their tokens were epochs that depended on a counter.
update /*:*/outbox o
set state = 1, epoch = o.epoch + l.step, leased_until = l.leased_until, worker = l.worker
from /*:*/outbox_lease l cross join lateral unnest(l.items) i
where o.seq >= lower(i) and o.seq < upper(i) and o.state = 0;

update /*:*/outbox set born = null where state = 1 or (state = 0 and (due_at > now() or lease_losses > 0 or attempts > 0));

-- What no publisher stores, and no claim or settlement could calculate with. Such rows made every claim fail. A number that
-- leaves no room for the next one goes to the archive with its message; other values are brought within their limits.
with unusable as (
    delete from /*:*/outbox where seq not between -4611686018427387904 and 4611686018427387903 returning *
)
insert into /*:*/outbox_archive select * from unusable;
update /*:*/outbox
set attempts = greatest(0, least(attempts, 1000000000)), lease_losses = greatest(0, least(lease_losses, 1000000000)),
    created_at = case when isfinite(created_at) then created_at else now() end,
    due_at = case when due_at > '-infinity' then due_at else now() end,
    leased_until = case when isfinite(leased_until) then leased_until when state = 1 then now() end,
    expires_at = case when isfinite(expires_at) then expires_at end,
    failing_since = case when isfinite(failing_since) then failing_since end
where attempts not between 0 and 1000000000 or lease_losses not between 0 and 1000000000
   or not isfinite(created_at) or due_at = '-infinity' or not isfinite(leased_until) or not isfinite(expires_at)
   or not isfinite(failing_since);
alter table /*:*/outbox add constraint /*+*/outbox_usable check (
    seq between -4611686018427387904 and 4611686018427387903 and state between 0 and 3 and order_policy between 0 and 2
    and attempts between 0 and 1000000000 and lease_losses between 0 and 1000000000
    and isfinite(created_at) and due_at > '-infinity' and isfinite(leased_until) and isfinite(expires_at)
    and isfinite(failing_since));

drop index /*:*/outbox_ready;
-- seq + 0: for a stretch of numbers the planner would otherwise read the primary key, and with it everything in between.
create index /*+*/outbox_new on /*:*/outbox (priority, born, (seq + 0)) where state = 0 and born is not null;
create index /*+*/outbox_due on /*:*/outbox (due_at, seq) where state = 0 and born is null and lease_losses = 0;

drop function if exists /*:*/claim_all(text, bigint, interval, text[], text[], integer, boolean);
drop function if exists /*:*/leave_mark(integer, timestamptz, bigint, boolean, pg_snapshot, bigint);
drop function if exists /*:*/crowded(integer, integer, bigint, bigint);
drop function if exists /*:*/note_crash();
drop function if exists /*:*/gate();
drop function if exists /*:*/lock_leases(int8multirange);
drop function if exists /*:*/let_go(bigint[], int8multirange);
drop function if exists /*:*/ack_all(bigint[], bigint[], integer, boolean);
drop table /*:*/outbox_lease, /*:*/outbox_mark, /*:*/outbox_walk, /*:*/outbox_step, /*:*/outbox_awake;

-- A row per claim, or per renewal of a part of one.
create table /*:*/outbox_lease (
    id              bigint generated always as identity primary key,
    token           integer not null,                -- the epoch of its messages: random, never given out again
    born            xid8 not null default pg_current_xact_id(),
    leased_until    timestamptz not null,
    worker          text not null,
    items           int8multirange not null          -- the seqs of its messages; those that are done may still be in it
);
create index /*+*/outbox_lease_token on /*:*/outbox_lease (token);
create index /*+*/outbox_lease_born on /*:*/outbox_lease (born);
alter table /*:*/outbox_lease set (
    autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.0, autovacuum_analyze_threshold = 1000
);

-- A part of outbox_new: from a message to the end of its priority, of several priorities, or of the transaction that wrote it.
create type /*:*/outbox_segment as (
    first_priority smallint, last_priority smallint, from_born xid8, from_seq bigint, to_born xid8, to_seq bigint
);

-- Where claims with the same filter of topics begin to read outbox_new. Rows are added and never changed; the newest counts.
create table /*:*/outbox_cursor (
    id              bigint generated always as identity primary key,
    born            xid8 not null default pg_current_xact_id(),
    filter          text collate "C" not null,       -- the worker's topics and what is paused, as a hash; empty for all
    next_xid        xid8 not null,                   -- transactions from here on had not begun when it was written
    lease_from      xid8 not null,                   -- leases are of these transactions,
    lease_late      xid8[] not null,                 -- or of those
    segments        /*:*/outbox_segment[] not null   -- what may have something to claim, in the order of the index
);
create index /*+*/outbox_cursor_filter on /*:*/outbox_cursor (filter, id);
alter table /*:*/outbox_cursor set (
    autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.0, autovacuum_analyze_threshold = 1000
);

-- Keys of which the message behind an ended one was locked by another session when its turn came. Empty at nearly all times.
create table /*:*/outbox_turn (
    key             text collate "C" not null,
    over            bigint not null                  -- the seq of the one that had ended
);
