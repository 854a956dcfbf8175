-- Whether an event is not yet sent; the condition is that of the partial index.
select exists (select from outbox_events where status in ('Pending', 'Processing'))
