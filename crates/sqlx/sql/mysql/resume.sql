-- Ends a pause: answers with one row, or with none if these topics, written the same way, are not paused. See
-- routines/resume.sql.
-- topics
call /*:*/resume(?)
