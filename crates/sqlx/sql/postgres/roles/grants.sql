-- The rights of three kinds of users. With psql: -v enqueue=ROLE -v relay=ROLE -v maintenance=ROLE
-- Everybody may look at the version of the tables.
grant usage on schema /*=*/posthaste to :"enqueue", :"relay", :"maintenance";
grant select on /*:*/outbox_version to :"enqueue", :"relay", :"maintenance";

-- Publishes, can learn which message a duplicate is of, and what its own transaction still holds. Cannot read what
-- anybody published.
grant insert on /*:*/outbox to :"enqueue";
grant select (seq, message_id, dedup, epoch, state) on /*:*/outbox to :"enqueue";

-- Claims, settles, renews, reaps, expires and parks, and takes turns of jobs. Cannot publish.
grant select, update, delete on /*:*/outbox to :"relay";
grant select, insert, update on /*:*/outbox_job to :"relay";

-- Looks, requeues, buries, prunes and archives, and takes turns of jobs.
grant select, update, delete on /*:*/outbox to :"maintenance";
grant select, insert, delete on /*:*/outbox_history to :"maintenance";
grant select, insert on /*:*/outbox_archive to :"maintenance";
grant select, insert, update on /*:*/outbox_job to :"maintenance";
