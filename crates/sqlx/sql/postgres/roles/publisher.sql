-- The rights of a service that publishes. With psql: -v role=NAME
grant usage on schema /*=*/posthaste to :"role";
grant select on /*:*/outbox_version to :"role";

-- Publishes, and learns which message a duplicate is of. It has no right on the table: it cannot read what others published, and
-- what it stores is ready, due now or later, and nothing else.
grant execute on function /*:*/publish_one, /*:*/publish, /*:*/twins to :"role";
