-- Messages by pgmq's own function, in one statement; the clock does not run.
select pgmq.send($1, jsonb_build_object('id', n, 'text', $2::text)) from generate_series(1, $3::bigint) as n
