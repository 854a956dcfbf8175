-- The rights of an operator: a person with the CLI, or the HTTP API. With psql: -v role=NAME
grant usage on schema /*=*/posthaste to :"role";
grant select on /*:*/outbox_version to :"role";

-- Looks, requeues, buries, pauses, resumes, prunes and archives, and takes turns of jobs.
grant select, update, delete on /*:*/outbox to :"role";
grant select on /*:*/outbox_lease, /*:*/outbox_cursor to :"role";
grant insert on /*:*/outbox_turn to :"role";
grant select, insert, delete on /*:*/outbox_history to :"role";
grant select, insert on /*:*/outbox_archive to :"role";
grant select, insert, update on /*:*/outbox_job to :"role";
grant select, insert, delete on /*:*/outbox_pause to :"role";
grant select, update, delete on /*:*/outbox_join, /*:*/outbox_join_member, /*:*/outbox_join_wait to :"role";

-- Looks into the inbox, and prunes it for consumers that may not.
grant select, delete on /*:*/outbox_inbox to :"role";
