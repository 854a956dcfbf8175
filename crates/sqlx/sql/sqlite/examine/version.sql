-- Which version it is.
select sqlite_version()
