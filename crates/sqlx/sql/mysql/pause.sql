-- Pauses topics: answers with one row, or with none if the very same are paused already. See routines/pause.sql.
-- topics, who, why
call /*:*/pause(?, ?, ?)
