-- The rights of a consumer with an inbox. With psql: -v role=NAME
grant usage on schema /*=*/posthaste to :"role";
grant select on /*:*/outbox_version to :"role";

-- Remembers what it has acted upon, and recognises it. It cannot read what was kept for audit.
grant insert on /*:*/outbox_inbox to :"role";
grant select (consumer, source, message_id, payload_hash) on /*:*/outbox_inbox to :"role";

-- Forgets what is old, when it is its turn.
grant select (ctid, received_at), delete on /*:*/outbox_inbox to :"role";
grant select, insert, update on /*:*/outbox_job to :"role";
