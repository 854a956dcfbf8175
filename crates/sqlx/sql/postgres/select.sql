-- The messages that an operator's change is about, locked in the order of enqueueing: see routines/choose.sql.
-- $1 true: those that can be requeued; false: those that can be buried; the others as in list.sql without $1
select seq, message_id, key
from /*:*/choose($1::boolean, $2::smallint, $3::text[], $4::text[], $5::text, $6::text, $7::text, $8::smallint, $9::bigint,
                 $10::bigint, $11::uuid[], $12::bigint)
