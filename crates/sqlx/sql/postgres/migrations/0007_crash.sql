-- Claims do not wait for the disk. What a crash of the server makes of those that were not there yet, nobody can know but those who
-- made them; so after it no epoch is given out that one of them may have.
create table /*:*/outbox_step (
    one             boolean primary key default true check (one),
    step            integer not null                 -- how far a claim's epoch is from the row's: one, and one more for every crash
);
insert into /*:*/outbox_step (step) values (1);

-- Not logged, so that a crash empties it: that is how it is noticed.
create unlogged table /*:*/outbox_awake (
    since           timestamptz not null default now()
);
insert into /*:*/outbox_awake default values;

alter table /*:*/outbox_lease add column if not exists step integer not null default 1;

-- Is told how far to go, now.
drop function if exists /*:*/claim_all(text, bigint, interval, text[], text[]);
