package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/inboxd/inboxd/inbox"
)

const insertAudit = `
INSERT INTO audit (actor, token_id, action, object, source_id, handler_id, job_id, reason, note, before, after)
VALUES (@actor, @token, @action, @object, @source, @handler, @job, @reason, @note, @before, @after)`

// change is what audit writes down. Values that are nil become NULL.
type change struct {
	action          inbox.Action
	object          string
	source, handler int64
	job             int64
	before, after   any
}

// audit writes a change down in the transaction that makes it.
func audit(ctx context.Context, tx pgx.Tx, by inbox.Actor, c change) error {
	args := withActor(by, pgx.StrictNamedArgs{
		"action": string(c.action), "object": c.object, "source": orNull(c.source), "handler": orNull(c.handler),
		"job": orNull(c.job), "before": c.before, "after": c.after,
	})
	_, err := tx.Exec(ctx, insertAudit, args)
	return err
}

// withActor adds what each statement that writes to the audit asks for.
func withActor(by inbox.Actor, args pgx.StrictNamedArgs) pgx.StrictNamedArgs {
	args["actor"], args["token"] = validText(by.Name), orNull(by.TokenID)
	args["reason"], args["note"] = validText(by.Reason), validText(by.Note)
	return args
}

func orNull(id int64) *int64 {
	if id == 0 {
		return nil
	}
	return &id
}

// auditedSource is what the audit shows of a source.
type auditedSource struct {
	Provider  string          `json:"provider"`
	Variant   string          `json:"variant"`
	Settings  json.RawMessage `json:"settings"`
	Secrets   []string        `json:"secrets"`
	BodyLimit int64           `json:"body_limit"`
	Enabled   bool            `json:"enabled"`
}

func auditSource(s *inbox.Source, before []inbox.SecretInfo) *auditedSource {
	settings := s.Settings
	if len(settings) == 0 {
		settings = json.RawMessage("{}")
	}
	return &auditedSource{
		Provider: s.Provider, Variant: s.Variant, Settings: settings, Secrets: maskSecrets(s.SecretInfo, before),
		BodyLimit: s.BodyLimit, Enabled: s.Enabled,
	}
}

// auditedHandler is what the audit shows of a handler.
type auditedHandler struct {
	URL               string   `json:"url"`
	Sources           []string `json:"sources"`
	MessageTypes      []string `json:"message_types"`
	Secrets           []string `json:"secrets"`
	Credentials       []string `json:"credentials"`
	Concurrency       int      `json:"concurrency"`
	Timeout           string   `json:"timeout"`
	MaxRetryCount     int      `json:"max_retry_count"`
	BackoffBase       string   `json:"backoff_base"`
	BackoffCap        string   `json:"backoff_cap"`
	PermanentStatuses []int    `json:"permanent_statuses"`
	Paused            bool     `json:"paused"`
}

func auditHandler(h *inbox.Handler, before []inbox.SecretInfo, had *inbox.Credentials) *auditedHandler {
	credentials := h.Credentials.Kinds()
	if !h.Credentials.Equal(had) {
		for i := range credentials {
			credentials[i] += " (new)"
		}
	}
	return &auditedHandler{
		URL: h.URL, Sources: h.Sources, MessageTypes: h.MessageTypes, Secrets: maskSecrets(h.SecretInfo, before),
		Credentials: credentials, Concurrency: h.Concurrency, Timeout: h.Timeout.String(), MaxRetryCount: h.MaxRetryCount,
		BackoffBase: h.Backoff.Base.String(), BackoffCap: h.Backoff.Cap.String(),
		PermanentStatuses: append([]int{}, h.PermanentStatuses...), Paused: h.Paused,
	}
}

// maskSecrets shows each secret as its id, until when it holds, and whether it wasn't there before.
func maskSecrets(secrets, before []inbox.SecretInfo) []string {
	masked := make([]string, len(secrets))
	for i, secret := range secrets {
		masked[i] = secret.Secret.String() + " " + secret.ID
		if !secret.NotAfter.IsZero() {
			masked[i] += " until " + secret.NotAfter.UTC().Format(time.RFC3339)
		}
		if !slices.ContainsFunc(before, func(b inbox.SecretInfo) bool { return b.ID == secret.ID }) {
			masked[i] += " (new)"
		}
	}
	return masked
}

// auditStep is how many entries a page may look at for a filter that no index serves.
const auditStep = 10_000

// listAudit takes the next entries by number, those that an index leads to or the next auditStep, and drops
// what the other filters don't want.
const listAudit = `
WITH step AS MATERIALIZED (
    SELECT * FROM audit
    WHERE id < @before AND (@message::bigint = 0 OR message = @message) AND (@object::text = '' OR object = @object)
    ORDER BY id DESC LIMIT @step
)
SELECT id, at, actor, coalesce(token_id, 0), action, object, coalesce(source_id, 0), coalesce(handler_id, 0),
       coalesce(message, 0), coalesce(job_id, 0), reason, note, before, after
FROM step
WHERE (@actor::text = '' OR actor = @actor) AND (@action::text = '' OR action = @action) AND at >= @from AND at < @to
  AND (NOT @some::boolean OR coalesce(source_id, handler_id) IS NOT NULL
       AND (source_id IS NULL OR @sources::bigint[] IS NULL OR source_id = ANY (@sources))
       AND (handler_id IS NULL OR @handlers::bigint[] IS NULL OR handler_id = ANY (@handlers)))
ORDER BY id DESC LIMIT @limit`

// auditEnd tells whether a step that gave too few entries ended in the middle of the table.
const auditEnd = `
SELECT coalesce((
    SELECT id FROM audit
    WHERE id < @before AND (@message::bigint = 0 OR message = @message) AND (@object::text = '' OR object = @object)
    ORDER BY id DESC OFFSET @step LIMIT 1
), 0)`

// ListAudit returns a page of the audit, the latest entry first, that continues after the id, or from the
// latest if it is 0. A page may be short, even empty, and have a next.
func (db *DB) ListAudit(ctx context.Context, f inbox.AuditFilter, after int64, limit int) (inbox.AuditPage, error) {
	if after == 0 {
		after = math.MaxInt64
	}
	args := withReach(f.Within, pgx.StrictNamedArgs{
		"before": after, "message": f.Message, "object": f.Object, "actor": f.Actor, "action": string(f.Action),
		"from": orInfinity(f.From, pgtype.NegativeInfinity), "to": orInfinity(f.To, pgtype.Infinity),
		"step": auditStep, "limit": limit + 1, "some": f.Within != nil,
	})
	rows, _ := db.pool.Query(ctx, listAudit, planned, args)
	entries, err := pgx.CollectRows(rows, scanAudit)
	if err != nil {
		return inbox.AuditPage{}, fmt.Errorf("list the audit: %w", mapError(err))
	}
	if len(entries) > limit {
		return inbox.AuditPage{Items: entries[:limit], Next: entries[limit-1].ID}, nil
	}
	page := inbox.AuditPage{Items: entries}
	err = db.pool.QueryRow(ctx, auditEnd, planned, pgx.StrictNamedArgs{
		"before": after, "message": f.Message, "object": f.Object, "step": auditStep - 1,
	}).Scan(&page.Next)
	if err != nil {
		return page, fmt.Errorf("list the audit: %w", mapError(err))
	}
	return page, nil
}

func scanAudit(row pgx.CollectableRow) (e inbox.AuditEntry, err error) {
	err = row.Scan(&e.ID, &e.At, &e.Actor.Name, &e.Actor.TokenID, &e.Action, &e.Object, &e.SourceID, &e.HandlerID,
		&e.Message, &e.Job, &e.Actor.Reason, &e.Actor.Note, &e.Before, &e.After)
	return e, err
}
