-- +goose Up

-- Who changed what, and why. A row is written in the transaction of its change, so there is neither one
-- without the other.
CREATE TABLE audit (
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         timestamptz NOT NULL DEFAULT now(),
    actor      text        NOT NULL, -- the token's name, or who acted without one
    token_id   bigint      REFERENCES token,
    action     text        NOT NULL, -- such as source.change
    object     text        NOT NULL, -- the name, or a delivery's id
    source_id  bigint,
    handler_id bigint,
    message    bigint,               -- inbox_message.id
    reason     text        NOT NULL,
    note       text        NOT NULL,
    before     jsonb,                -- secrets masked
    after      jsonb
);
CREATE INDEX audit_message ON audit (message, id) WHERE message IS NOT NULL;
CREATE INDEX audit_object ON audit (object, id);

-- +goose StatementBegin
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'table % takes new rows only', TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
END
$$;
-- +goose StatementEnd
CREATE TRIGGER audit_insert_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
