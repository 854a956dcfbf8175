-- The indexes of the file; each of them can be used.
select name, 'valid' from sqlite_master where type = 'index'
