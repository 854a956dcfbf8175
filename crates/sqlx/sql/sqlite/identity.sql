-- Which file this is; empty if it is none. Then the schema of tables that have none in their name, and whether names that differ
-- in case are the same.
select file, null, 1 from pragma_database_list where name = 'main'
