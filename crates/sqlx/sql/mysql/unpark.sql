-- Makes what was parked behind these rows due again.
-- seqs, keys
update json_table(?, '$[*]' columns (n for ordinality, seq bigint path '$')) s
straight_join json_table(?, '$[*]' columns (
    n for ordinality, name varchar(255) character set utf8mb4 path '$')) k on k.n = s.n
straight_join /*:*/outbox o on o.open_key = cast(k.name as binary) and o.seq > s.seq
set o.due_at = utc_timestamp(6)
where o.state = 0 and o.due_at = '9999-12-31 23:59:59.999999'
