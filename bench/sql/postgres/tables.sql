-- The business row of every publisher, and the barest table that could hold messages.
create table business (id bigint generated always as identity primary key, note text not null);
create table bare (id bigint generated always as identity primary key, payload text not null);

-- The plainest table from which several workers can claim.
create table plain (
    id           bigint generated always as identity primary key,
    payload      text not null,
    leased_until timestamptz
);
create index plain_ready on plain (id) where leased_until is null;
