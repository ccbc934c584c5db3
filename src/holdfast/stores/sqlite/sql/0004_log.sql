-- An id may finish more than once; each time has a row of its own.

DROP INDEX holdfast_log_id;
CREATE INDEX holdfast_log_id ON holdfast_log (qid, id);
