-- Stores a join; one whose id is stored already is left as it is: see routines/joins.sql.
-- $1 id, $2 grouping key, $3 expected steps, $4 metadata, $5 whether the expiry counts from now, $6 expiry (µs)
select from /*:*/add_join(
    $1::uuid, $2::text, $3::bigint::integer, $4::text,
    case when $5::boolean then statement_timestamp() else timestamptz 'epoch' end + $6::bigint::float8 * interval '1 microsecond')
