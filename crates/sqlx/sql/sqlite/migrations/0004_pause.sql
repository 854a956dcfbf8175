-- What is paused: topics that nobody claims until they are resumed. A row is a topic, or the beginning of some and a *.
create table /*:*/outbox_pause (
    topics          text primary key not null,
    by_whom         text not null,
    why             text not null,
    since           integer not null                 -- by this database's clock
) without rowid;
