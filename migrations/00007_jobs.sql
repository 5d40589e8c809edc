-- +goose Up

-- A job acts on all deliveries that a filter chooses, page by page, from the newest message down. The row holds
-- how far it has come; whoever leads goes on from there.
CREATE TABLE job (
    id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    action      text        NOT NULL CHECK (action IN ('retry', 'done', 'discard', 'replay')),
    filter      jsonb       NOT NULL,
    to_handler  bigint,               -- replay: the only handler that gets the messages
    pace        integer     NOT NULL CHECK (pace >= 0), -- deliveries per second; 0 is no limit
    actor       text        NOT NULL,
    token_id    bigint      REFERENCES token,
    reason      text        NOT NULL,
    note        text        NOT NULL,
    status      text        NOT NULL DEFAULT 'running' CHECK (status IN ('running', 'done', 'cancelled', 'failed')),
    error       text        NOT NULL DEFAULT '',
    created_at  timestamptz NOT NULL DEFAULT now(),
    updated_at  timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz,
    next_at     timestamptz NOT NULL DEFAULT now(), -- when the next page may come, by the pace
    fence       bigint      NOT NULL, -- the latest claim_seq at creation: what was claimed since is left alone
    top         bigint      NOT NULL, -- where it began: one above the latest message
    bottom      bigint      NOT NULL, -- about where it will end
    cursor      bigint      NOT NULL, -- all messages from here up are dealt with
    selected    bigint      NOT NULL DEFAULT 0,
    moved       bigint      NOT NULL DEFAULT 0,
    skipped     bigint      NOT NULL DEFAULT 0, -- had moved on when their turn came
    CHECK (selected = moved + skipped),
    CHECK ((status = 'running') = (finished_at IS NULL))
);
CREATE INDEX job_running ON job (id) WHERE status = 'running';

-- The deliveries that jobs moved. The key says that a job moves a delivery once; its order, that a delivery
-- leads to its jobs.
CREATE TABLE job_delivery (
    id         bigint      NOT NULL, -- the message's number
    handler_id bigint      NOT NULL,
    job_id     bigint      NOT NULL REFERENCES job,
    at         timestamptz NOT NULL DEFAULT now(),
    claim_seq  bigint      NOT NULL, -- before
    replay_no  integer     NOT NULL, -- after
    PRIMARY KEY (id, handler_id, job_id)
);

ALTER TABLE audit ADD COLUMN job_id bigint;
