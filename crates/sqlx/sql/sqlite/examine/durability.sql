-- What decides whether a commit outlives a power failure: 0 off, 1 normal, 2 full, 3 extra.
select cast(synchronous as text) from pragma_synchronous
