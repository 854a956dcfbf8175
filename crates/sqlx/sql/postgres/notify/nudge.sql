-- Tells whoever listens that there may be something to claim. PostgreSQL's alone: the other databases have no such thing.
-- $1 channel
select pg_notify($1, '')
