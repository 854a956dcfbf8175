-- Nothing: versions count alike everywhere, and this one lets claims on PostgreSQL see at once what was committed late.
select 0;
