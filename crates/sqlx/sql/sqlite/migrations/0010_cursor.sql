-- Nothing: versions count alike everywhere, and this one lets claims on PostgreSQL remember how far there is nothing to claim.
select 0;
