-- Stores a batch of ready messages, and answers the ids of those that it stored: see routines/publish.sql.
-- $1 ids, $2 topics, $3 keys, $4 order policies, $5 dedup hashes, $6 payloads, $7 content types, $8 headers,
-- $9 correlation ids, $10 aggregate types, $11 aggregate ids, $12 tenants, $13 priorities, $14 occurred at (µs),
-- $15 due in (µs) or $16 at (µs), $17 expires in (µs) or $18 at (µs); null: now, never
select * from /*:*/publish(
    $1::uuid[], $2::text[], $3::text[], $4::smallint[], $5::bytea[], $6::bytea[], $7::text[], $8::text[], $9::text[],
    $10::text[], $11::text[], $12::text[], $13::smallint[], $14::bigint[], $15::bigint[], $16::bigint[], $17::bigint[],
    $18::bigint[])
