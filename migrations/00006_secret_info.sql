-- +goose Up

-- What is known of each secret, in the order of the column secrets: [{"id", "added_at", "not_after"}]. Where it
-- has not as many elements, a build that doesn't know it has written the secrets, and it means nothing.
ALTER TABLE source ADD COLUMN secret_info jsonb NOT NULL DEFAULT '[]';
ALTER TABLE handler ADD COLUMN secret_info jsonb NOT NULL DEFAULT '[]';
