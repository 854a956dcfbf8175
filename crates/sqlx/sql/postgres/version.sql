-- The version of the tables.
select version from /*:*/outbox_version
