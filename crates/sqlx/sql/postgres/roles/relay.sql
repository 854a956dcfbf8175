-- The rights of a worker or a relay. With psql: -v role=NAME
grant usage on schema /*=*/posthaste to :"role";
grant select on /*:*/outbox_version to :"role";

-- Claims, settles, renews, reaps, expires, parks and prunes, takes turns of jobs, and publishes the continuations of joins.
grant select, insert, update, delete on /*:*/outbox, /*:*/outbox_lease, /*:*/outbox_cursor, /*:*/outbox_turn to :"role";
grant select, update, delete on /*:*/outbox_join, /*:*/outbox_join_member to :"role";
grant select, insert, update, delete on /*:*/outbox_join_wait to :"role";
grant select, delete on /*:*/outbox_history to :"role";
grant select, insert on /*:*/outbox_archive to :"role";
grant select, insert, update on /*:*/outbox_job to :"role";
grant select on /*:*/outbox_pause to :"role";
grant execute on function /*:*/publish_one, /*:*/publish, /*:*/twins, /*:*/join_answer to :"role";
