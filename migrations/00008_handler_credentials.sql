-- +goose Up

-- What a handler is shown beside the signature: one sealed text, of JSON.
ALTER TABLE handler ADD COLUMN credentials text;
