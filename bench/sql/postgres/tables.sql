-- The business row of every publisher, and the barest table that could hold messages.
create table business (id bigint generated always as identity primary key, note text not null);
create table bare (id bigint generated always as identity primary key, payload text not null);
