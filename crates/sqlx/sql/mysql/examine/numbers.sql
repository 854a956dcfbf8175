-- The highest seq that is taken. InnoDB never gives out a lower one.
select cast(coalesce(max(seq), 0) as char) from /*:*/outbox
