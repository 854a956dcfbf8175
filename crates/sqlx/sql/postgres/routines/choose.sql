-- Locks the messages that an operator's change selects, in the order of enqueueing. Messages to bury must not be leased: this leaves
-- out those that a claim leased before they were locked. A parameter that is null selects all.
create or replace function /*:*/choose(
    can_be_requeued boolean, in_state smallint, topics text[], topic_prefixes text[], with_key text, of_tenant text,
    correlated text, class smallint, from_us bigint, before_us bigint, ids uuid[], max_messages bigint
)
returns table (seq bigint, message_id uuid, key text)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set jit = off
as $body$
#variable_conflict use_column
declare
    v_leased int8multirange := case when $1 then '{}' else /*:*/leased() end;
    v_locked bigint[];
begin
    v_locked := array(
        select seq
        from /*:*/outbox
        where case when $1 then state = 3
                   else (state = 0 and not v_leased @> seq)
                        or (state = 3 and key is not null and order_policy <> 2 and error_class not in (6, 8)) end
          and ($2 is null or state = $2)
          and (($3 is null and $4 is null) or topic = any($3) or topic ^@ any($4))
          and ($5 is null or key = $5)
          and ($6 is null or tenant_id = $6)
          and ($7 is null or correlation_id = $7)
          and ($8 is null or error_class = $8)
          and ($9 is null or created_at >= timestamptz 'epoch' + $9 * interval '1 microsecond')
          and ($10 is null or created_at < timestamptz 'epoch' + $10 * interval '1 microsecond')
          and ($11 is null or message_id = any($11))
        order by seq
        limit $12
        for update);
    if not $1 then
        v_leased := /*:*/leased();
    end if;
    return query
    select o.seq, o.message_id, o.key from /*:*/outbox o
    where o.seq = any(v_locked) and not (o.state = 0 and v_leased @> o.seq)
    order by o.seq;
end
$body$;
