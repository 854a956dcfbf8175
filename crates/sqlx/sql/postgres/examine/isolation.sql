-- How transactions are isolated that do not say it.
select current_setting('default_transaction_isolation')
