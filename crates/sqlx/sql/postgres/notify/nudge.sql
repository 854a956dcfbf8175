-- Tells whoever listens that there may be something to claim. PostgreSQL's alone: the other databases have no such thing. It is
-- a hint, so that nobody waits for it to be on disk.
-- $1 channel
select pg_notify($1, '') from set_config('synchronous_commit', 'off', true)
