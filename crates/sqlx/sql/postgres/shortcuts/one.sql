-- Stores one ready message: see routines/publish.sql. A row if it was stored, none if its id or dedup key is stored already.
-- $1 id, $2 topic, $3 order policy, $4 dedup hash, $5 payload, $6 content type, $7 headers, $8 correlation id,
-- $9 aggregate type, $10 aggregate id, $11 tenant, $12 priority, $13 occurred at (µs), $14 key, $15 due in (µs) or
-- $16 at (µs), $17 expires in (µs) or $18 at (µs); null: now, never
-- Microseconds are multiplied as float8, exactly up to 285 years: PostgreSQL has that operator, and no other role's is nearer.
select 1 where /*:*/publish_one(
    $1::uuid, $2::text, $3::smallint, $4::bytea, $5::bytea, $6::text, $7::text, $8::text, $9::text, $10::text, $11::text,
    $12::smallint, timestamptz 'epoch' + $13::bigint::float8 * interval '1 microsecond', $14::text,
    $15::bigint::float8 * interval '1 microsecond', timestamptz 'epoch' + $16::bigint::float8 * interval '1 microsecond',
    $17::bigint::float8 * interval '1 microsecond', timestamptz 'epoch' + $18::bigint::float8 * interval '1 microsecond')
