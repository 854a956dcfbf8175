-- Tells for each settlement whether it takes place (0 applied, 1 lost, 2 gone), and then applies those that do, in the
-- one transaction that its caller holds. Messages that count in joins, or wait for one, are rows of two columns.
-- ?1 settlements: [[seq, epoch, outcome, delay µs, class, error, most attempts, most µs of failing without charge,
-- handlers that are done], ..], ?2 whether done are kept, ?3 what time it is
select case when o.seq is null then 2
            when o.state = 1 and o.epoch = json_extract(a.value, '$[1]') then 0
            when o.state = 2 and o.epoch = json_extract(a.value, '$[1]') and json_extract(a.value, '$[2]') = 0 then 0
            else 1 end
from json_each(?1) a left join /*:*/outbox o on o.seq = json_extract(a.value, '$[0]')
order by a.key;

-- What is about to be deleted counts in its joins, and what is about to be deferred may wait for one; only if there are any.
select o.message_id, case json_extract(a.value, '$[2]') when 0 then 1 else 0 end
from (select 1 where exists (select 1 from /*:*/outbox_join)) g
cross join json_each(?1) a cross join /*:*/outbox o on o.seq = json_extract(a.value, '$[0]')
where o.state = 1 and o.epoch = json_extract(a.value, '$[1]')
  and (json_extract(a.value, '$[2]') = 2 or (json_extract(a.value, '$[2]') = 0 and not ?2));

-- `+state`: by their numbers, not by walking all that is leased.
delete from /*:*/outbox
where not ?2 and +state = 1
  and (seq, epoch) in (
      select json_extract(a.value, '$[0]'), json_extract(a.value, '$[1]')
      from json_each(?1) a where json_extract(a.value, '$[2]') = 0);

update /*:*/outbox as o
set state = case when s.outcome = 0 then 2
                 when s.outcome = 4 or (s.costs and o.attempts + 1 >= s.max_attempts)
                      or (s.free and coalesce(o.failing_since, s.now) + s.max_age <= s.now) then 3
                 else 0 end,
    attempts = o.attempts + s.costs,
    failing_since = case when s.free then coalesce(o.failing_since, s.now) when not s.costs then o.failing_since end,
    due_at = case when (s.costs and o.attempts + 1 >= s.max_attempts)
                       or (s.free and coalesce(o.failing_since, s.now) + s.max_age <= s.now) then o.due_at
                  when s.outcome in (1, 2) then s.now + s.delay
                  else o.due_at end,
    done_at = case when s.outcome in (0, 4) or (s.costs and o.attempts + 1 >= s.max_attempts)
                        or (s.free and coalesce(o.failing_since, s.now) + s.max_age <= s.now) then s.now end,
    done_by = case when s.outcome = 0 then o.worker end,
    leased_until = null,
    worker = null,
    error_class = coalesce(s.class, o.error_class),
    last_error = coalesce(s.error, o.last_error),
    handled = coalesce(s.handled, o.handled)
from (
    select json_extract(a.value, '$[0]') as seq, json_extract(a.value, '$[1]') as epoch,
           json_extract(a.value, '$[2]') as outcome, json_extract(a.value, '$[3]') as delay,
           json_extract(a.value, '$[4]') as class, json_extract(a.value, '$[5]') as error,
           json_extract(a.value, '$[6]') as max_attempts, json_extract(a.value, '$[7]') as max_age,
           json_extract(a.value, '$[8]') as handled,
           json_extract(a.value, '$[2]') = 1 and json_extract(a.value, '$[4]') not in (2, 3) as costs,
           json_extract(a.value, '$[2]') = 1 and json_extract(a.value, '$[4]') in (2, 3) as free,
           ?3 as now
    from json_each(?1) a
    where ?2 or json_extract(a.value, '$[2]') <> 0
) s
where o.seq = s.seq and o.epoch = s.epoch and +o.state = 1;

-- So does what is done or dead now.
select o.message_id, case o.state when 2 then 1 else 2 end
from (select 1 where exists (select 1 from /*:*/outbox_join)) g
cross join json_each(?1) a cross join /*:*/outbox o on o.seq = json_extract(a.value, '$[0]')
where o.state in (2, 3) and o.epoch = json_extract(a.value, '$[1]')
