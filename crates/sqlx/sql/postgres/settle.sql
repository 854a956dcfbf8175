-- Applies outcomes to leased messages: see routines/settle.sql.
-- $1 seqs, $2 epochs, $3 outcomes (0 ack, 1 abandon, 2 defer, 3 release, 4 fail), $4 delays (µs), $5 failure classes,
-- $6 error texts, $7 most attempts, $8 whether done messages are kept, $9 for how long a message may fail without a break
-- and without charge (µs; null: for ever), $10 handlers that are done (one a line; null: as before), $11 whether to pass
-- messages that other sessions have locked
select settled, join_id, status, expected_steps, completed_steps, failed_steps
from /*:*/settle_free(
    $11::boolean, $1::bigint[], $2::integer[], $3::smallint[], $4::bigint[], $5::smallint[], $6::text[], $7::integer[],
    $8::boolean, $9::bigint[], $10::text[])
