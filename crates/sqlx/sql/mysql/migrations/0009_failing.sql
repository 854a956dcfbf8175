-- What fails for reasons that cost no attempt: counted by statistics, and made due when the outage is over. The column is null
-- for all other messages.
alter table /*:*/outbox
    add column /*M! if not exists */ failing datetime(6) as (
        case when state = 0 and error_class in (2, 3) then failing_since end
    ) virtual,
    add key /*M! if not exists */ /*+*/outbox_failing (failing, seq);
