-- Nothing: versions count alike everywhere, and this one remembers on PostgreSQL how claims walk.
select 0;
