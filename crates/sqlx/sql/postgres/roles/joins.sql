-- The rights of a service that starts joins, beside those of a publisher. With psql: -v role=NAME
grant usage on schema /*=*/posthaste to :"role";
grant select on /*:*/outbox_version to :"role";

-- Starts joins, attaches messages, waits for joins, reports steps and cancels joins. A join or a message that it knows the id of
-- need not be its own.
grant execute on function
    /*:*/add_join, /*:*/attach_steps, /*:*/report_step, /*:*/end_join, /*:*/wait_for_join, /*:*/join_answer
    to :"role";
