-- Remembers a message, unless it is there: then it fails with 1062, which undoes this statement and not the caller's
-- transaction. A plain insert, for three reasons. `on duplicate key update` would not tell the two apart, because the driver
-- asks for found rows and not for changed ones; it would also lock a row that is there exclusively, so that those who
-- meet a repeated message would wait for each other. And `ignore` would ignore more than that, and cut what is too long.
-- While another transaction that remembers the same message is open, this waits for its end. If that commits, there is
-- the row, which this transaction now has a shared lock on. If it rolls back, all who wait have such a lock on the gap that
-- it left, and all want to insert there: the server ends all but one of them (1213). No other form of insert does
-- better, and it takes a rollback and three at once; the conflict is told, and nobody is told that he is first in vain.
-- consumer, source, message, topic, hash of the payload, payload, occurred at (µs)
insert into /*:*/outbox_inbox (consumer, source, message_id, topic, payload_hash, payload, occurred_at, received_at)
values (?, ?, ?, ?, ?, ?, timestamp '1970-01-01 00:00:00' + interval ? microsecond, utc_timestamp(6))
