-- The messages with these ids, or with these dedup hashes; with a lock also those that were committed after the caller's
-- snapshot. The indexes are forced, because a scan would wait for rows that it does not need.
-- ids and dedup hashes, both in hexadecimal
(select o.message_id, o.dedup, o.seq, o.epoch
 from json_table(?, '$[*]' columns (id varchar(32) character set utf8mb4 path '$')) j
 straight_join /*:*/outbox o force index (/*+*/outbox_message_id)
     on o.message_id = unhex(j.id) /*lock*/)
union all
(select o.message_id, o.dedup, o.seq, o.epoch
 from json_table(?, '$[*]' columns (hash varchar(64) character set utf8mb4 path '$')) j
 straight_join /*:*/outbox o force index (/*+*/outbox_dedup)
     on o.no_dedup = 0 and o.dedup = unhex(j.hash) /*lock*/)
