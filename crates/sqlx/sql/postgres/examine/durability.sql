-- What decides whether a commit outlives a crash, as it is set for this role.
select current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit')
