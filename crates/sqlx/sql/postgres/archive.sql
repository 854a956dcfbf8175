-- Moves messages to the archive.
-- $1 seqs
with gone as (
    delete from /*:*/outbox where seq = any($1::bigint[]) returning *
)
insert into /*:*/outbox_archive select * from gone
