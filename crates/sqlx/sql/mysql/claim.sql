-- Takes messages that can start now: see routines/claim.sql.
-- worker, limit, lease (µs), topics (null with the next null: all), beginnings of topics
call /*:*/claim(?, ?, ?, ?, ?)
