-- +goose Up

-- Messages that reached no handler are few among all outcomes, and are looked for by number.
CREATE INDEX outcome_unrouted ON outcome (id, finished_at) WHERE result = 'UNROUTED';
