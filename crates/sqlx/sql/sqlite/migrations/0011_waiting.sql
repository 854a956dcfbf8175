-- Claims read only what they may take: by topic, and without messages that wait behind another of their key. See ADR 0035.

alter table /*:*/outbox add column waiting integer not null default 0;          -- 1: behind another of its key
alter table /*:*/outbox_archive add column waiting integer not null default 0;

drop index /*:*/outbox_ready;
drop index /*:*/outbox_suspect;

update /*:*/outbox as o
set waiting = 1
where o.state = 0 and o.key is not null and exists (
    select 1 from /*:*/outbox e
    where e.key = o.key and e.seq < o.seq
      and (e.state in (0, 1) or (e.state = 3 and e.order_policy <> 2 and e.error_class not in (6, 8))));

-- What a claim reads: for each topic the clean messages, and apart from them the suspects, in the order in which it hands them out.
create index /*:*/outbox_ready on /*+*/outbox (topic, priority, due_at, seq)
    where state = 0 and lease_losses = 0 and waiting = 0;
create index /*:*/outbox_suspect on /*+*/outbox (topic, priority, due_at, seq)
    where state = 0 and lease_losses > 0 and waiting = 0;
-- The others, for statistics.
create index /*:*/outbox_waiting on /*+*/outbox (due_at, seq) where state = 0 and waiting = 1;

-- A message waits if its key has another one when it is stored.
create trigger /*:*/outbox_wait after insert on /*+*/outbox
when new.key is not null and new.state = 0
begin
    update /*:*/outbox
    set waiting = 1
    where seq = new.seq and exists (
        select 1 from /*:*/outbox e
        where e.key = new.key and e.seq < new.seq
          and (e.state in (0, 1) or (e.state = 3 and e.order_policy <> 2 and e.error_class not in (6, 8))));
end;

-- The first message of a key never waits: when a message ends or is removed, the first of those that are left stops waiting.
create trigger /*:*/outbox_free_next after update of state, error_class on /*+*/outbox
when new.key is not null and new.state in (2, 3)
begin
    update /*:*/outbox
    set waiting = 0
    where waiting = 1 and seq = (
        select e.seq from /*:*/outbox e
        where e.key = new.key
          and (e.state in (0, 1) or (e.state = 3 and e.order_policy <> 2 and e.error_class not in (6, 8)))
        order by e.seq
        limit 1);
end;

create trigger /*:*/outbox_free_next_of_deleted after delete on /*+*/outbox
when old.key is not null and old.state <> 2
begin
    update /*:*/outbox
    set waiting = 0
    where waiting = 1 and seq = (
        select e.seq from /*:*/outbox e
        where e.key = old.key
          and (e.state in (0, 1) or (e.state = 3 and e.order_policy <> 2 and e.error_class not in (6, 8)))
        order by e.seq
        limit 1);
end;
