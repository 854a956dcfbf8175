-- The business row of every publisher, and the barest table that could hold messages.
create table business (id bigint not null auto_increment primary key, note text not null) engine = InnoDB;
create table bare (id bigint not null auto_increment primary key, payload text not null) engine = InnoDB;
