-- Records in the order of enqueueing: see routines/list.sql.
-- after this seq, state, topics (null with the next null: all), beginnings of topics, key, tenant, correlation id,
-- failure class, created from (µs), created before (µs), ids in hexadecimal, limit
call /*:*/list(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
