-- Lets leases last from now, and tells for each whether it is still held: 0 applied, 1 lost, 2 gone: see routines/keep.sql.
-- $1 seqs, $2 epochs, $3 lease
select settled from /*:*/renew_all($1::bigint[], $2::integer[], $3::interval)
