-- Leases: one row per claim. While a message is in one, its own row says ready; so taking, keeping and giving up a thousand
-- messages costs one row here and no change of theirs. A message that was born leased has its lease in its own row.
create table /*:*/outbox_lease (
    id              bigint generated always as identity primary key,
    leased_until    timestamptz not null,
    worker          text not null,
    items           int8multirange not null          -- the seqs of its messages; never empty
);
alter table /*:*/outbox_lease set (
    autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.0, autovacuum_analyze_threshold = 1000
);

-- Where claims begin to walk, while the entries of what was delivered cannot be removed from the index, because some
-- transaction has been open for long. Empty at other times.
create table /*:*/outbox_mark (
    priority        smallint primary key,
    low             timestamptz not null,            -- nothing that is due before is left to be claimed, as far as was seen
    until           timestamptz not null,            -- when to walk from the beginning again
    clear_until     timestamptz,                     -- when to look again for priorities between the mark before and this one
    lease           bigint not null                  -- no lease has a lower id
);
