-- How changes are kept until they are in the file.
select journal_mode from pragma_journal_mode
