-- The rights of a consumer with an inbox. With psql: -v consumer=ROLE
grant usage on schema /*=*/posthaste to :"consumer";
grant select on /*:*/outbox_version to :"consumer";

-- Remembers what it has acted upon, and recognises it. It cannot read what was kept for audit.
grant insert on /*:*/outbox_inbox to :"consumer";
grant select (consumer, source, message_id, payload_hash) on /*:*/outbox_inbox to :"consumer";

-- Asks, before it commits, whether its transaction can be committed; the question is one about leased messages, of none.
grant select (seq, epoch, state) on /*:*/outbox to :"consumer";

-- Forgets what is old, when it is its turn.
grant select (ctid, received_at), delete on /*:*/outbox_inbox to :"consumer";
grant select, insert, update on /*:*/outbox_job to :"consumer";
