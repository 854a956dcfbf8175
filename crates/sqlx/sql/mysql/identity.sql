-- Which server this is, whatever it was called to get here. Host, port and folder may be the same in two containers: the end of
-- a uuid is drawn when the server starts, and stays until it stops. Then the schema of tables that have none in their name, and
-- whether names that differ in case are the same. Anybody may ask this.
select concat_ws(' ', @@hostname, @@port, @@datadir, @@server_id, substr(uuid(), 20)),
       database(),
       @@lower_case_table_names <> 0
