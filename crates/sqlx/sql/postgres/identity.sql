-- Which database this is, whatever it was called to get here: when its server started, on which port it listens, and the
-- database's number there. Then the schema of tables that have none in their name, and whether names that differ in case
-- are the same. Anybody may ask this.
select (extract(epoch from pg_postmaster_start_time()) * 1000000::numeric)::bigint::text || ' ' || current_setting('port') || ' ' || d.oid::text,
       null::text,
       false
  from pg_catalog.pg_database d
 where d.datname = current_database()
