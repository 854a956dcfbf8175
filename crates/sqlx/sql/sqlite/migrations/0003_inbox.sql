-- The inbox: what consumers have acted upon. A row is made in the transaction in which the consumer acts, and never changed.
-- Without a row id: one tree less to write for every message.
create table /*:*/outbox_inbox (
    consumer        text not null,
    source          text not null,
    message_id      blob not null,
    topic           text not null,
    payload_hash    blob not null,                   -- SHA-256 of the payload
    payload         blob,                            -- null: not kept
    occurred_at     integer,                         -- by the publisher's account
    received_at     integer not null,                -- by this database's clock
    primary key (consumer, source, message_id)
) without rowid;
create index /*:*/outbox_inbox_received on /*+*/outbox_inbox (consumer, received_at);
