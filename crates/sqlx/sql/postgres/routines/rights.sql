-- Who may call the routines that run with the rights of the tables' owner: by default nobody else, and not everybody as PostgreSQL
-- would have it. A role that was granted the tables by an earlier release keeps what it could do: who may insert messages may
-- publish, and who may insert joins may start them.
do $body$
declare
    v_routine regproc;
    v_role text;
    v_right record;
begin
    perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    for v_right in
        select r.tab::regclass as tab, r.routines::regproc[] as routines
        from (values
            ('/*:*/outbox', array['/*:*/publish_one', '/*:*/publish', '/*:*/twins']),
            ('/*:*/outbox_join', array['/*:*/add_join', '/*:*/attach_steps', '/*:*/report_step', '/*:*/end_join',
                                       '/*:*/wait_for_join', '/*:*/join_answer'])
        ) r (tab, routines)
    loop
        foreach v_routine in array v_right.routines loop
            execute format('revoke execute on function %s from public', v_routine);
            for v_role in
                select case a.grantee when 0 then 'public' else a.grantee::regrole::text end
                from pg_class c cross join lateral aclexplode(c.relacl) a
                where c.oid = v_right.tab and a.privilege_type = 'INSERT' and a.grantee <> c.relowner
            loop
                execute format('grant execute on function %s to %s', v_routine, v_role);
            end loop;
        end loop;
    end loop;
end
$body$;
