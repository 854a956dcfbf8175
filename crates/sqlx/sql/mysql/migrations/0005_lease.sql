-- Nothing: versions count alike everywhere, and this one keeps PostgreSQL's leases in a table of their own.
do 0;
