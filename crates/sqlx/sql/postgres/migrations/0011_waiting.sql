-- Nothing: versions count alike everywhere, and this one lets claims on SQLite read only what they may take.
select 0;
