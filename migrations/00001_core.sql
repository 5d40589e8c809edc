-- +goose Up

-- What operators register ------------------------------------------------------------------------

CREATE TABLE source (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name       text        NOT NULL CHECK (name ~ '^[a-z0-9][a-z0-9_-]{0,62}$'),
    provider   text        NOT NULL,
    variant    text        NOT NULL DEFAULT '',
    settings   jsonb       NOT NULL DEFAULT '{}',
    secrets    text[]      NOT NULL DEFAULT '{}',
    body_limit bigint      NOT NULL DEFAULT 0 CHECK (body_limit >= 0),
    enabled    boolean     NOT NULL DEFAULT true,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    -- A deleted source keeps its row, since messages refer to it; its name is free again.
    deleted_at timestamptz
);
CREATE UNIQUE INDEX source_name ON source (name) WHERE deleted_at IS NULL;

CREATE TABLE handler (
    id                 bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name               text        NOT NULL CHECK (name ~ '^[a-z0-9][a-z0-9_-]{0,62}$'),
    url                text        NOT NULL,
    sources            text[]      NOT NULL,
    message_types      text[]      NOT NULL,
    secrets            text[]      NOT NULL CHECK (cardinality(secrets) > 0),
    concurrency        integer     NOT NULL CHECK (concurrency BETWEEN 1 AND 1000),
    timeout            interval    NOT NULL CHECK (timeout > '0'),
    max_retry_count    integer     NOT NULL CHECK (max_retry_count BETWEEN 0 AND 100),
    backoff_base       interval    NOT NULL CHECK (backoff_base > '0'),
    backoff_cap        interval    NOT NULL CHECK (backoff_cap >= backoff_base),
    permanent_statuses integer[]   NOT NULL DEFAULT '{}',
    paused             boolean     NOT NULL DEFAULT false,
    created_at         timestamptz NOT NULL DEFAULT now(),
    updated_at         timestamptz NOT NULL DEFAULT now(),
    -- Never removed while rows refer to it: the leader ends its deliveries as DISCARDED.
    deleted_at         timestamptz
);
CREATE UNIQUE INDEX handler_name ON handler (name) WHERE deleted_at IS NULL;

CREATE TABLE token (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name       text        NOT NULL UNIQUE,
    hash       bytea       NOT NULL UNIQUE, -- SHA-256 of a random token of 256 bits
    created_at timestamptz NOT NULL DEFAULT now(),
    revoked_at timestamptz
);

-- The version that ingest compares: a message is routed with the sources and handlers of its commit.
CREATE TABLE snapshot_version (
    one     boolean PRIMARY KEY DEFAULT true CHECK (one),
    version bigint  NOT NULL
);
INSERT INTO snapshot_version (version) VALUES (1);

-- A trigger, so that no way of changing a source or handler, psql included, can forget it.
-- +goose StatementBegin
CREATE FUNCTION bump_snapshot_version() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE snapshot_version SET version = version + 1;
    RETURN NULL;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER bump AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON source
    FOR EACH STATEMENT EXECUTE FUNCTION bump_snapshot_version();
CREATE TRIGGER bump AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON handler
    FOR EACH STATEMENT EXECUTE FUNCTION bump_snapshot_version();

CREATE TABLE leader (
    one        boolean     PRIMARY KEY DEFAULT true CHECK (one),
    owner      text        NOT NULL,
    term       bigint      NOT NULL,
    expires_at timestamptz NOT NULL
);
INSERT INTO leader (owner, term, expires_at) VALUES ('', 0, '-infinity');

-- Messages ---------------------------------------------------------------------------------------

CREATE SEQUENCE inbox_message_id; -- CACHE 1: a session that holds numbers back would deliver out of order
CREATE SEQUENCE claim_fence;

CREATE TABLE inbox_message (
    id           bigint      NOT NULL,
    received_at  timestamptz NOT NULL,
    source_id    bigint      NOT NULL,
    message_id   text        NOT NULL CHECK (octet_length(message_id) BETWEEN 1 AND 512),
    message_type text        NOT NULL CHECK (octet_length(message_type) <= 512),
    event_time   timestamptz,
    biz_key      text        CHECK (octet_length(biz_key) BETWEEN 1 AND 512),
    ordering_key text        CHECK (octet_length(ordering_key) BETWEEN 1 AND 512),
    content_type text        NOT NULL,
    headers      bytea       NOT NULL, -- lines "Name: value", CR LF; bytes, since a header need not be UTF-8
    body         bytea       NOT NULL, -- as it came
    PRIMARY KEY (id, received_at)
) PARTITION BY RANGE (received_at);
CREATE INDEX inbox_message_source ON inbox_message (source_id, id);
CREATE INDEX inbox_message_biz_key ON inbox_message (biz_key, id) WHERE biz_key IS NOT NULL;
CREATE INDEX inbox_message_ordering_key ON inbox_message (ordering_key, id) WHERE ordering_key IS NOT NULL;

-- +goose StatementBegin
DO $$
BEGIN
    -- Some builds of PostgreSQL lack lz4; theirs stay with pglz.
    IF (SELECT 'lz4' = ANY (enumvals) FROM pg_settings WHERE name = 'default_toast_compression') THEN
        ALTER TABLE inbox_message ALTER COLUMN body SET COMPRESSION lz4;
    END IF;
END
$$;
-- +goose StatementEnd

-- The unique key on which every guarantee stands. A partitioned table can't hold it without its
-- partition key, hence a narrow table of its own.
CREATE TABLE inbox_key (
    source_id   bigint      NOT NULL,
    message_id  text        NOT NULL,
    id          bigint      NOT NULL,
    received_at timestamptz NOT NULL,
    body_hash   bytea       NOT NULL, -- the first 16 bytes of the body's SHA-256
    PRIMARY KEY (source_id, message_id)
);

-- One business fact, one row. scope is the source's number unless sources share one.
CREATE TABLE inbox_biz_key (
    scope        text        NOT NULL,
    message_type text        NOT NULL,
    biz_key      text        NOT NULL,
    id           bigint      NOT NULL,
    received_at  timestamptz NOT NULL,
    PRIMARY KEY (scope, message_type, biz_key)
);

-- Deliveries: only what is not finished ----------------------------------------------------------

CREATE TABLE delivery (
    id              bigint      NOT NULL, -- the message's number
    handler_id      bigint      NOT NULL,
    source_id       bigint      NOT NULL,
    received_at     timestamptz NOT NULL,
    next_retry_time timestamptz NOT NULL, -- infinity while WAITING
    claimed_at      timestamptz,
    lease_until     timestamptz,
    claim_seq       bigint      NOT NULL DEFAULT 0, -- of the latest claim; never goes back
    claim_token     uuid,
    retry_count     integer     NOT NULL DEFAULT 0 CHECK (retry_count >= 0),
    max_retry_count integer     NOT NULL,
    replay_no       integer     NOT NULL DEFAULT 0,
    status          text        NOT NULL
        CHECK (status IN ('PENDING', 'WAITING', 'PROCESSING', 'FAILED', 'MANUAL_REQUIRED')),
    owner           text, -- the instance that holds the claim
    ordering_key    text,
    last_error      text        CHECK (octet_length(last_error) <= 1024),
    PRIMARY KEY (id, handler_id),
    CHECK (retry_count <= max_retry_count),
    CHECK ((status = 'PROCESSING') = (claim_token IS NOT NULL)
       AND (status = 'PROCESSING') = (claimed_at IS NOT NULL)
       AND (status = 'PROCESSING') = (lease_until IS NOT NULL))
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_cost_delay = 0);
-- By handler first, so that a paused handler's backlog is never walked through for another's.
CREATE INDEX delivery_ready ON delivery (handler_id, next_retry_time, id) WHERE status IN ('PENDING', 'FAILED');
CREATE INDEX delivery_lease ON delivery (lease_until) WHERE status = 'PROCESSING';
CREATE INDEX delivery_waiting ON delivery (handler_id, ordering_key, id) WHERE status = 'WAITING';
CREATE INDEX delivery_parked ON delivery (handler_id, id) WHERE status = 'MANUAL_REQUIRED';

-- The keys that have unfinished work at a handler that keeps their order.
CREATE TABLE lane (
    handler_id   bigint NOT NULL,
    ordering_key text   NOT NULL,
    PRIMARY KEY (handler_id, ordering_key)
);

-- Ledgers: insert-only ---------------------------------------------------------------------------

CREATE TABLE outcome (
    id              bigint      NOT NULL,
    handler_id      bigint,     -- NULL: the message reached no handler (UNROUTED, DUPLICATE)
    source_id       bigint      NOT NULL,
    received_at     timestamptz NOT NULL,
    finished_at     timestamptz NOT NULL,
    claimed_at      timestamptz,
    claim_seq       bigint      NOT NULL DEFAULT 0,
    claim_token     uuid,
    replay_no       integer     NOT NULL DEFAULT 0,
    attempts        integer     NOT NULL DEFAULT 0, -- since ingest, replay or the operator's last retry
    max_retry_count integer     NOT NULL DEFAULT 0,
    response_status integer     NOT NULL DEFAULT 0,
    duration        interval,   -- of the last attempt
    dup_of          bigint,     -- DUPLICATE: the message that has the business key
    result          text        NOT NULL CHECK (result IN ('DONE', 'DISCARDED', 'DUPLICATE', 'UNROUTED')),
    ordering_key    text,
    last_error      text
) PARTITION BY RANGE (finished_at);
CREATE INDEX outcome_delivery ON outcome (id, handler_id);

CREATE TABLE attempt (
    id              bigint      NOT NULL,
    handler_id      bigint      NOT NULL,
    source_id       bigint      NOT NULL,
    finished_at     timestamptz NOT NULL,
    claim_seq       bigint      NOT NULL,
    claim_token     uuid        NOT NULL,
    replay_no       integer     NOT NULL,
    retry_count     integer     NOT NULL, -- before the attempt
    stale           boolean     NOT NULL DEFAULT false, -- written back after its claim was lost
    response_status integer     NOT NULL DEFAULT 0,
    duration        interval,   -- NULL for an expired lease: nobody knows
    class           text        NOT NULL, -- '' for a stale success
    error           text        NOT NULL DEFAULT '',
    owner           text        NOT NULL DEFAULT '',
    response_body   bytea       NOT NULL DEFAULT ''
) PARTITION BY RANGE (finished_at);
CREATE INDEX attempt_delivery ON attempt (id, handler_id);

-- One row for each delivery: the live one, else its latest outcome. An outcome without a handler gives
-- way as soon as the message has one.
CREATE VIEW delivery_status AS
SELECT id, handler_id, source_id, received_at, status, retry_count, max_retry_count, next_retry_time,
       claimed_at, claim_token, claim_seq, lease_until, owner, replay_no, ordering_key, last_error,
       0 AS response_status, NULL::interval AS duration, NULL::timestamptz AS finished_at,
       NULL::bigint AS dup_of
FROM delivery
UNION ALL
SELECT o.id, o.handler_id, o.source_id, o.received_at, o.result, greatest(o.attempts - 1, 0),
       o.max_retry_count, NULL, o.claimed_at, o.claim_token, o.claim_seq, NULL, NULL, o.replay_no,
       o.ordering_key, o.last_error, o.response_status, o.duration, o.finished_at, o.dup_of
FROM outcome AS o
WHERE CASE WHEN o.handler_id IS NULL
      THEN NOT EXISTS (SELECT FROM delivery AS d WHERE d.id = o.id)
       AND NOT EXISTS (SELECT FROM outcome AS h WHERE h.id = o.id AND h.handler_id IS NOT NULL)
      ELSE NOT EXISTS (SELECT FROM delivery AS d WHERE d.id = o.id AND d.handler_id = o.handler_id)
       AND NOT EXISTS (SELECT FROM outcome AS n WHERE n.id = o.id AND n.handler_id = o.handler_id
                                                 AND n.replay_no > o.replay_no)
      END;

-- Partitions -------------------------------------------------------------------------------------

-- Makes the day's partition (UTC) of a partitioned table; false if it was there. A standalone table is
-- made and attached, since ATTACH waits for no reader of the parent, where CREATE … PARTITION OF would.
-- +goose StatementBegin
CREATE FUNCTION make_partition(parent text, day date) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    child text := parent || to_char(day, '_YYYYMMDD');
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('inboxd.make_partition', 0));
    IF EXISTS (SELECT FROM pg_inherits
               WHERE inhparent = parent::regclass AND inhrelid = to_regclass(quote_ident(child))) THEN
        RETURN false;
    END IF;
    EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING ALL)', child, parent);
    EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', parent, child,
                   day::timestamp AT TIME ZONE 'UTC', (day + 1)::timestamp AT TIME ZONE 'UTC');
    RETURN true;
END
$$;
-- +goose StatementEnd

-- The days that the first rows need; the leader keeps making them ahead.
SELECT make_partition(t, (now() AT TIME ZONE 'UTC')::date + d)
FROM unnest(ARRAY ['inbox_message', 'outcome', 'attempt']) AS t, generate_series(0, 2) AS d;
