-- Which version it is: as a number, and as people say it.
select current_setting('server_version_num'), current_setting('server_version')
