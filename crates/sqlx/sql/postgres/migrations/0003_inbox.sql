-- The inbox: what consumers have acted upon. A row is made in the transaction in which the consumer acts, and never changed.
create table /*:*/outbox_inbox (
    consumer        text collate "C" not null,
    source          text collate "C" not null,
    message_id      uuid not null,
    topic           text collate "C" not null,
    payload_hash    bytea not null,                  -- SHA-256 of the payload
    payload         bytea,                           -- null: not kept
    occurred_at     timestamptz,                     -- by the publisher's account
    received_at     timestamptz not null,            -- by this database's clock
    primary key (consumer, source, message_id)
);
create index /*+*/outbox_inbox_received on /*:*/outbox_inbox (consumer, received_at);
