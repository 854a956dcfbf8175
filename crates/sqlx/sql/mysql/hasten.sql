-- Makes messages of these topics due now that wait for the end of an outage: see routines/hasten.sql.
-- topics (null with the next null: all), beginnings of topics, limit
call /*:*/hasten(?, ?, ?)
