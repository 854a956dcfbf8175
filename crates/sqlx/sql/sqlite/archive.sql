-- Copies messages to the archive; prune.sql follows in the same transaction.
-- ?1 seqs
insert into /*:*/outbox_archive select * from /*:*/outbox where seq in (select value from json_each(?1)) order by seq
