package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/inboxd/inboxd/inbox"
)

// Pages of a ledger walk from the latest row back, in steps. A statement returns the rows of a step that the
// filter wants and, wanted or not, the last row of a full step, where the next one begins.
const (
	ledgerStep   = 5_000  // rows of a step, if the filter may drop some
	ledgerWalked = 20_000 // rows that one page may look at
)

// entry is a row of a step.
type entry[T any] struct {
	item   T
	at     inbox.LedgerPosition
	number int // within the step, from 1
	wanted bool
}

// walkLedger reads a page with a statement that takes the arguments of ledgerArgs.
func walkLedger[T any](ctx context.Context, db *DB, statement string, f inbox.LedgerFilter, after inbox.LedgerPosition, limit int,
	scan pgx.RowToFunc[entry[T]],
) (page inbox.LedgerPage[T], err error) {
	step := ledgerStep
	if f.SourceID == 0 && f.HandlerID == 0 && f.Class == "" && f.Result == "" && f.ResponseStatus == 0 && f.Within == nil {
		step = limit + 1 // every row counts
	}
	for walked := 0; walked < ledgerWalked; walked += step {
		rows, _ := db.pool.Query(ctx, statement, planned, ledgerArgs(f, after, step))
		entries, err := pgx.CollectRows(rows, scan)
		if err != nil {
			return page, err
		}
		after = inbox.LedgerPosition{}
		for _, e := range entries {
			if e.wanted {
				if len(page.Items) == limit {
					return page, nil
				}
				page.Items, page.Next = append(page.Items, e.item), e.at
			}
			if e.number == step {
				after = e.at
			}
		}
		if page.Next = after; after == (inbox.LedgerPosition{}) {
			return page, nil
		}
	}
	return page, nil
}

func ledgerArgs(f inbox.LedgerFilter, after inbox.LedgerPosition, step int) pgx.StrictNamedArgs {
	return withReach(f.Within, pgx.StrictNamedArgs{
		"at": orInfinity(after.FinishedAt, pgtype.Infinity), "id": after.Message, "delivery_handler": after.DeliveryID.Handler,
		"claim_seq": after.ClaimSeq, "from": orInfinity(f.From, pgtype.NegativeInfinity), "to": orInfinity(f.To, pgtype.Infinity),
		"message": f.Message, "source": f.SourceID, "handler": f.HandlerID, "response_status": f.ResponseStatus,
		"kind": string(f.Class) + string(f.Result), "step": step,
	})
}

const listAttempts = `
SELECT l.id, l.handler_id, coalesce((SELECT name FROM handler AS h WHERE h.id = l.handler_id), ''),
       coalesce((SELECT name FROM source AS s WHERE s.id = l.source_id), ''),
       l.finished_at, l.claim_seq, l.replay_no, l.retry_count, l.stale, l.response_status, l.duration, l.class, l.error,
       l.owner, l.response_body, l.n, l.wanted
FROM (
    SELECT *, row_number() OVER (ORDER BY finished_at DESC, id DESC, handler_id DESC, claim_seq DESC) AS n,
           (@source::bigint = 0 OR source_id = @source) AND (@handler::bigint = 0 OR handler_id = @handler)
           AND (@sources::bigint[] IS NULL OR source_id = ANY (@sources))
           AND (@handlers::bigint[] IS NULL OR handler_id = ANY (@handlers))
           AND (@kind::text = '' OR class = @kind) AND (@response_status::int = 0 OR response_status = @response_status) AS wanted
    FROM (SELECT * FROM attempt
          WHERE finished_at <= @at AND finished_at >= @from AND finished_at < @to
            AND (finished_at, id, handler_id, claim_seq) < (@at, @id, @delivery_handler, @claim_seq)
            AND (@message::bigint = 0 OR id = @message)
          ORDER BY finished_at DESC, id DESC, handler_id DESC, claim_seq DESC LIMIT @step) AS step
) AS l
WHERE l.wanted OR l.n = @step
ORDER BY l.n`

// ListAttempts returns a page of failed attempts, the latest first.
func (db *DB) ListAttempts(ctx context.Context, f inbox.LedgerFilter, after inbox.LedgerPosition, limit int) (inbox.LedgerPage[inbox.AttemptEntry], error) {
	page, err := walkLedger(ctx, db, listAttempts, f, after, limit, scanAttemptEntry)
	if err != nil {
		return page, fmt.Errorf("list attempts: %w", mapError(err))
	}
	return page, nil
}

func scanAttemptEntry(row pgx.CollectableRow) (e entry[inbox.AttemptEntry], err error) {
	var (
		a        = &e.item
		duration *time.Duration
		class    string
	)
	err = row.Scan(&a.Message, &a.DeliveryID.Handler, &a.Handler, &a.Source, &a.FinishedAt, &a.ClaimSeq, &a.ReplayNo, &a.RetryCount,
		&a.Stale, &a.ResponseStatus, &duration, &class, &a.Error, &a.Owner, &a.ResponseBody, &e.number, &e.wanted)
	a.Duration, a.Class = orZero(duration), inbox.Class(class)
	e.at = inbox.LedgerPosition{FinishedAt: a.FinishedAt, DeliveryID: a.DeliveryID, ClaimSeq: a.ClaimSeq}
	return e, err
}

const listOutcomes = `
SELECT l.id, coalesce(l.handler_id, 0), coalesce((SELECT name FROM handler AS h WHERE h.id = l.handler_id), ''),
       coalesce((SELECT name FROM source AS s WHERE s.id = l.source_id), ''),
       l.received_at, l.claimed_at, coalesce(l.dup_of, 0), l.finished_at, l.result, l.replay_no, l.claim_seq, l.attempts,
       l.max_retry_count, l.response_status, l.duration, coalesce(l.last_error, ''), l.n, l.wanted
FROM (
    SELECT *, row_number() OVER (ORDER BY finished_at DESC, id DESC, coalesce(handler_id, 0) DESC, claim_seq DESC) AS n,
           (@source::bigint = 0 OR source_id = @source) AND (@handler::bigint = 0 OR handler_id = @handler IS TRUE)
           AND (@sources::bigint[] IS NULL OR source_id = ANY (@sources))
           AND (@handlers::bigint[] IS NULL OR handler_id IS NULL OR handler_id = ANY (@handlers))
           AND (@kind::text = '' OR result = @kind) AND (@response_status::int = 0 OR response_status = @response_status) AS wanted
    FROM (SELECT * FROM outcome
          WHERE finished_at <= @at AND finished_at >= @from AND finished_at < @to
            AND (finished_at, id) <= (@at, @id)
            AND (finished_at, id, coalesce(handler_id, 0), claim_seq) < (@at, @id, @delivery_handler, @claim_seq)
            AND (@message::bigint = 0 OR id = @message)
          ORDER BY finished_at DESC, id DESC, coalesce(handler_id, 0) DESC, claim_seq DESC LIMIT @step) AS step
) AS l
WHERE l.wanted OR l.n = @step
ORDER BY l.n`

// ListOutcomes returns a page of outcomes, the latest first.
func (db *DB) ListOutcomes(ctx context.Context, f inbox.LedgerFilter, after inbox.LedgerPosition, limit int) (inbox.LedgerPage[inbox.OutcomeEntry], error) {
	page, err := walkLedger(ctx, db, listOutcomes, f, after, limit, scanOutcomeEntry)
	if err != nil {
		return page, fmt.Errorf("list outcomes: %w", mapError(err))
	}
	return page, nil
}

func scanOutcomeEntry(row pgx.CollectableRow) (e entry[inbox.OutcomeEntry], err error) {
	var (
		o         = &e.item
		claimedAt *time.Time
		duration  *time.Duration
		result    string
	)
	err = row.Scan(&o.Message, &o.DeliveryID.Handler, &o.Handler, &o.Source, &o.ReceivedAt, &claimedAt, &o.DupOf, &o.FinishedAt,
		&result, &o.ReplayNo, &o.ClaimSeq, &o.Attempts, &o.MaxRetryCount, &o.ResponseStatus, &duration, &o.LastError,
		&e.number, &e.wanted)
	o.ClaimedAt, o.Duration, o.Result = orZero(claimedAt), orZero(duration), inbox.Status(result)
	e.at = inbox.LedgerPosition{FinishedAt: o.FinishedAt, DeliveryID: o.DeliveryID, ClaimSeq: o.ClaimSeq}
	return e, err
}
