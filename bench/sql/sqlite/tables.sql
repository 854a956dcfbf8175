-- The business row of every publisher, and the barest table that could hold messages.
create table business (id integer primary key, note text not null);
create table bare (id integer primary key, payload text not null);
