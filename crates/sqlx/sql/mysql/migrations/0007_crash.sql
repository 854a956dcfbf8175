-- Nothing: versions count alike everywhere, and this one lets claims on PostgreSQL not wait for the disk.
do 0;
