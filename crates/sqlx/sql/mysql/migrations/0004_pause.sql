-- What is paused: topics that nobody claims until they are resumed. A row is a topic, or the beginning of some and a *.
create table if not exists /*:*/outbox_pause (
    topics          varbinary(255) not null,
    by_whom         varchar(100) character set utf8mb4 collate utf8mb4_bin not null,
    why             varchar(1000) character set utf8mb4 collate utf8mb4_bin not null,
    since           datetime(6) not null,            -- by this server's clock
    primary key (topics)
) engine = InnoDB row_format = dynamic;
