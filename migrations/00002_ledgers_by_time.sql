-- +goose Up

-- The ledgers are read by time: the latest failures, what ended within the last minutes. Without these a page
-- would sort a day. Only the processor writes the ledgers, and always at the right-hand end of these indexes;
-- ingest writes an outcome for a message that reaches no handler, and nothing else.
CREATE INDEX attempt_finished ON attempt (finished_at, id);
CREATE INDEX outcome_finished ON outcome (finished_at, id);
