-- How many messages of which topic are in which state, of the first ones of each state.
create procedure /*:*/topics(in p_cap bigint)
reads sql data
sql security invoker
begin
    select topic, state, count(*) as count
    from (
        (select topic, state from /*:*/outbox force index (/*+*/outbox_state) where state = 0 limit p_cap)
        union all
        (select topic, state from /*:*/outbox force index (/*+*/outbox_state) where state = 1 limit p_cap)
        union all
        (select topic, state from /*:*/outbox force index (/*+*/outbox_state) where state = 3 limit p_cap)
    ) t
    group by topic, state
    order by topic, state;
end
