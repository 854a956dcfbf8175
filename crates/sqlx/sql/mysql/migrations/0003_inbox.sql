-- The inbox: what consumers have acted upon. A row is made in the transaction in which the consumer acts, and never changed.
-- There is no other unique key than the primary one: each would be one more place to wait, and to deadlock, in.
create table if not exists /*:*/outbox_inbox (
    consumer        varbinary(100) not null,
    source          varbinary(255) not null,
    message_id      binary(16) not null,
    topic           varbinary(255) not null,
    payload_hash    binary(32) not null,             -- SHA-256 of the payload
    payload         longblob,                        -- null: not kept
    occurred_at     datetime(6),                     -- by the publisher's account
    received_at     datetime(6) not null,            -- by this server's clock
    primary key (consumer, source, message_id),
    key /*+*/outbox_inbox_received (consumer, received_at)
) engine = InnoDB row_format = dynamic;
