-- Gives messages up.
-- seqs, reason
update json_table(?, '$[*]' columns (seq bigint path '$')) s straight_join /*:*/outbox o on o.seq = s.seq
set o.state = 3, o.done_at = utc_timestamp(6), o.error_class = 8, o.last_error = ?,
    o.due_at = if(o.due_at = '9999-12-31 23:59:59.999999', utc_timestamp(6), o.due_at)
where o.state in (0, 3)
