-- The search path, and the schemas on it in which other roles may create something, with those roles. It runs with that very path,
-- so it names the functions that have several forms in full.
select current_setting('search_path'),
       (select pg_catalog.string_agg(distinct pg_catalog.format('%s (%s)', n.nspname, coalesce(r.rolname, 'PUBLIC')), ', ')
        from pg_catalog.unnest(pg_catalog.current_schemas(false)) p (name)
        join pg_catalog.pg_namespace n on n.nspname = p.name
        cross join lateral pg_catalog.aclexplode(n.nspacl) a
        left join pg_catalog.pg_roles r on r.oid = a.grantee
        where a.privilege_type = 'CREATE' and a.grantee <> n.nspowner and not coalesce(r.rolsuper, false)
          and coalesce(r.rolname, '') <> current_user)
