-- Stores a join; one whose id is stored already is left as it is.
-- $1 id, $2 grouping key, $3 expected steps, $4 metadata, $5 whether the expiry counts from now, $6 expiry (µs)
insert into /*:*/outbox_join (
    join_id, grouping_key, status, expected_steps, attached_steps, completed_steps, failed_steps, created_at, updated_at,
    expires_at, metadata
)
values (
    $1, $2, 0, $3::bigint::integer, 0, 0, 0, statement_timestamp(), statement_timestamp(),
    case when $5::boolean then statement_timestamp() else timestamptz 'epoch' end + $6::bigint::float8 * interval '1 microsecond',
    $4
)
on conflict do nothing
