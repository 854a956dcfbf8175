-- Stores a join; one whose id is stored already is left as it is. All values were checked before, so there is nothing else
-- to ignore.
-- id, grouping key, expected steps, metadata, whether the expiry counts from now, expiry (µs)
insert ignore into /*:*/outbox_join (
    join_id, grouping_key, expected_steps, metadata, expires_at, status, attached_steps, completed_steps, failed_steps,
    created_at, updated_at
) values (
    ?, ?, ?, ?, if(?, utc_timestamp(6), timestamp '1970-01-01 00:00:00.000000') + interval ? microsecond, 0, 0, 0, 0,
    utc_timestamp(6), utc_timestamp(6)
)
