-- The rights of three kinds of users. With psql: -v enqueue=ROLE -v relay=ROLE -v maintenance=ROLE
-- Everybody may look at the version of the tables.
grant usage on schema /*=*/posthaste to :"enqueue", :"relay", :"maintenance";
grant select on /*:*/outbox_version to :"enqueue", :"relay", :"maintenance";

-- Publishes, can learn which message a duplicate is of, and what its own transaction still holds. Cannot read what
-- anybody published.
grant insert on /*:*/outbox to :"enqueue";
grant select (seq, message_id, dedup, epoch, state) on /*:*/outbox to :"enqueue";

-- Starts joins and attaches messages to them, which are locked for that; the join may end by it, and what waits for it is due.
grant select (due_at), update (due_at) on /*:*/outbox to :"enqueue";
grant select, insert, update on /*:*/outbox_join, /*:*/outbox_join_member, /*:*/outbox_join_wait to :"enqueue";

-- Claims, settles, renews, reaps, expires, parks and prunes, and takes turns of jobs. It publishes the continuations of joins.
grant select, insert, update, delete on /*:*/outbox, /*:*/outbox_lease, /*:*/outbox_cursor, /*:*/outbox_turn to :"relay";
grant select, update, delete on /*:*/outbox_join, /*:*/outbox_join_member to :"relay";
grant select, insert, update, delete on /*:*/outbox_join_wait to :"relay";
grant select, delete on /*:*/outbox_history to :"relay";
grant select, insert on /*:*/outbox_archive to :"relay";
grant select, insert, update on /*:*/outbox_job to :"relay";
grant select on /*:*/outbox_pause to :"relay";

-- Looks, requeues, buries, pauses, resumes, prunes and archives, and takes turns of jobs.
grant select, update, delete on /*:*/outbox to :"maintenance";
grant select on /*:*/outbox_lease, /*:*/outbox_cursor to :"maintenance";
grant insert on /*:*/outbox_turn to :"maintenance";
grant select, insert, delete on /*:*/outbox_history to :"maintenance";
grant select, insert on /*:*/outbox_archive to :"maintenance";
grant select, insert, update on /*:*/outbox_job to :"maintenance";
grant select, insert, delete on /*:*/outbox_pause to :"maintenance";
grant select, update, delete on /*:*/outbox_join, /*:*/outbox_join_member, /*:*/outbox_join_wait to :"maintenance";

-- Looks into the inbox, and prunes it for consumers that may not.
grant select, delete on /*:*/outbox_inbox to :"maintenance";
