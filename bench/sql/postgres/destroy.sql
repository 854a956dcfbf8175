-- Reads and deletes the first thousand bare messages at once: at most once, without leases; a limit, not a design.
delete from bare where id = any(array(select id from bare order by id limit 1000 for update skip locked)) returning payload
