-- Copies messages to the archive; prune.sql follows in the same transaction.
-- seqs
insert into /*:*/outbox_archive (
    seq, message_id, created_at, due_at, leased_until, expires_at, occurred_at, done_at, failing_since, epoch,
    attempts, lease_losses, state, priority, order_policy, error_class, topic, `key`, dedup, payload, content_type, headers, correlation_id,
    aggregate_type, aggregate_id, tenant_id, worker, done_by, last_error, handled
)
select
    o.seq, message_id, created_at, due_at, leased_until, expires_at, occurred_at, done_at, failing_since, epoch,
    attempts, lease_losses, state, priority, order_policy, error_class, topic, `key`, dedup, payload, content_type, headers, correlation_id,
    aggregate_type, aggregate_id, tenant_id, worker, done_by, last_error, handled
from json_table(?, '$[*]' columns (seq bigint path '$')) s straight_join /*:*/outbox o on o.seq = s.seq
