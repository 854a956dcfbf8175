-- The messages with these ids, or with these dedup hashes. With the lock it sees what was committed after the caller's
-- snapshot, too.
-- ids and dedup hashes, both in hexadecimal
(select o.message_id, o.dedup, o.seq, o.epoch
 from json_table(?, '$[*]' columns (id varchar(32) path '$')) j
 straight_join /*:*/outbox o on o.message_id = unhex(j.id) /*lock*/)
union all
(select o.message_id, o.dedup, o.seq, o.epoch
 from json_table(?, '$[*]' columns (hash varchar(64) path '$')) j
 straight_join /*:*/outbox o on o.dedup = unhex(j.hash) /*lock*/)
