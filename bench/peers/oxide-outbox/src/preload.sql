-- Pending events as outbox-postgres writes them: free since the epoch, without a token.
insert into outbox_events (event_type, payload, locked_until)
select $1, jsonb_build_object('id', n, 'text', $2::text), to_timestamp(0) from generate_series(1, $3::bigint) as n
