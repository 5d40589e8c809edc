-- +goose Up

-- What a token may do, for how long, and with what. Tokens of before could do everything.
ALTER TABLE token
    ADD COLUMN role       text        NOT NULL DEFAULT 'admin' CHECK (role IN ('read', 'operate', 'admin')),
    ADD COLUMN expires_at timestamptz,
    ADD COLUMN sources    text[]      NOT NULL DEFAULT '{*}' CHECK (cardinality(sources) > 0), -- globs of names
    ADD COLUMN handlers   text[]      NOT NULL DEFAULT '{*}' CHECK (cardinality(handlers) > 0);
ALTER TABLE token ALTER COLUMN role SET DEFAULT 'read';
