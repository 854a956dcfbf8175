-- Which version it is.
select version()
