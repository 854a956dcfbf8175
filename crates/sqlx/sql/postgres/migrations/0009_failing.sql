-- What fails for reasons that cost no attempt: counted by statistics, and made due when the outage is over.
create index if not exists /*+*/outbox_failing on /*:*/outbox (failing_since, seq) where state = 0 and error_class in (2, 3);
