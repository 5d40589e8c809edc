package postgres

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/inboxd/inboxd/inbox"
)

// tailed is an event with its row's place.
type tailed struct {
	inbox.TailEvent
	key tailRowKey
}

// tailPart is what the next rows of a table tell.
type tailPart struct {
	events []tailed
	last   tailRowKey // of the last row that was looked at
	full   bool       // there may be more rows
}

// tailTables read the next rows of a span, in this order.
var tailTables = []func(ctx context.Context, db *DB, f inbox.Filter, seen tailView, span *tailSpan) (tailPart, error){
	tailMessages, tailAttempts, tailOutcomes,
}

// tailNew is true of a row that the later snapshot shows and the earlier one doesn't. A row has only the lower half of its
// writer's number; tailWriter makes it whole.
const tailNew = `
    pg_visible_in_snapshot(w.writer, @until::text::pg_snapshot) AND NOT pg_visible_in_snapshot(w.writer, @seen::text::pg_snapshot)`

const tailWriter = `
CROSS JOIN (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS latest) AS l
CROSS JOIN LATERAL (SELECT (l.latest - ((l.latest - step.xid::text::bigint) & 4294967295))::text::xid8 AS writer) AS w`

const newMessages = `
SELECT id, received_at, n, wanted FROM (
    SELECT id, received_at, row_number() OVER (ORDER BY id) AS n,
           received_at >= @since AND (@source::bigint = 0 OR source_id = @source) AND` + tailNew + ` AS wanted
    FROM (SELECT id, received_at, source_id, xmin AS xid FROM inbox_message
          WHERE id > @after AND id <= @last
          ORDER BY id LIMIT @step) AS step` + tailWriter + `
) AS c
WHERE wanted OR n = @step
ORDER BY n`

func tailMessages(ctx context.Context, db *DB, f inbox.Filter, seen tailView, span *tailSpan) (part tailPart, err error) {
	rows, _ := db.pool.Query(ctx, newMessages, planned, pgx.StrictNamedArgs{
		"source": f.SourceID, "until": span.Until.Snapshot, "seen": seen.Snapshot, "after": max(span.After.ID, span.From.ID),
		"last": span.To.ID, "step": tailStep, "since": orInfinity(seen.Since, pgtype.NegativeInfinity),
	})
	var (
		found    idSpan
		id       int64
		at       time.Time
		no       int
		isWanted bool
	)
	_, err = pgx.ForEachRow(rows, []any{&id, &at, &no, &isWanted}, func() error {
		part.last, part.full = tailRowKey{ID: id}, no == tailStep
		if isWanted {
			found.add(id, at)
		}
		return nil
	})
	if err != nil {
		return part, err
	}
	messages, err := db.messagesOf(ctx, found)
	if err != nil {
		return part, err
	}
	for _, m := range slices.Backward(messages) {
		m.Limit(f.Within)
		if f.Within.Source(m.SourceID) && (f.MessageType == "" || m.MessageType == f.MessageType) && wanted(m, f) {
			part.events = append(part.events, tailed{inbox.TailEvent{Message: m}, tailRowKey{ID: m.ID}})
		}
	}
	return part, nil
}

// idSpan is messages by number, and when they were received, which leaves the partitions of other days out.
type idSpan struct {
	ids         []int64
	first, last time.Time // zero: unknown
}

func (s *idSpan) add(id int64, at time.Time) {
	if len(s.ids) == 0 || at.Before(s.first) {
		s.first = at
	}
	if at.After(s.last) {
		s.last = at
	}
	s.ids = append(s.ids, id)
}

// messagesOf reads messages with their deliveries, the highest number first.
func (db *DB) messagesOf(ctx context.Context, s idSpan) ([]*inbox.MessageState, error) {
	if len(s.ids) == 0 {
		return nil, nil
	}
	w := walkArgs{before: math.MaxInt64, ids: s.ids, from: s.first, step: len(s.ids)}
	if !s.last.IsZero() {
		w.to = s.last.Add(time.Microsecond)
	}
	messages, _, _, err := stepMessages(ctx, db.pool, w)
	if err == nil {
		err = addDeliveries(ctx, db.pool, messages)
	}
	return messages, err
}

// newAttempts are failures. One that was reported after its claim was lost changed nothing.
const newAttempts = `
SELECT id, handler_id, coalesce((SELECT name FROM handler AS h WHERE h.id = c.handler_id), ''),
       source_id, coalesce((SELECT name FROM source AS s WHERE s.id = c.source_id), ''),
       finished_at, claim_seq, replay_no, retry_count, response_status, duration, error, n, wanted
FROM (
    SELECT *, row_number() OVER (ORDER BY finished_at, id, handler_id, claim_seq) AS n,
           NOT stale AND (@source::bigint = 0 OR source_id = @source) AND (@handler::bigint = 0 OR handler_id = @handler)
           AND` + tailNew + ` AS wanted
    FROM (SELECT *, xmin AS xid FROM attempt
          WHERE finished_at >= @at AND finished_at <= @last
            AND (finished_at, id, handler_id, claim_seq) > (@at, @id, @delivery_handler, @claim_seq)
          ORDER BY finished_at, id, handler_id, claim_seq LIMIT @step) AS step` + tailWriter + `
) AS c
WHERE wanted OR n = @step
ORDER BY n`

// newOutcomes are ends. What reached no handler is told as a message.
const newOutcomes = `
SELECT id, coalesce(handler_id, 0), coalesce((SELECT name FROM handler AS h WHERE h.id = c.handler_id), ''),
       source_id, coalesce((SELECT name FROM source AS s WHERE s.id = c.source_id), ''),
       finished_at, claim_seq, replay_no, greatest(attempts - 1, 0), response_status, duration, coalesce(last_error, ''),
       result, max_retry_count, received_at, claimed_at, coalesce(ordering_key, ''), n, wanted
FROM (
    SELECT *, row_number() OVER (ORDER BY finished_at, id, coalesce(handler_id, 0), claim_seq) AS n,
           handler_id IS NOT NULL AND (@source::bigint = 0 OR source_id = @source) AND (@handler::bigint = 0 OR handler_id = @handler)
           AND` + tailNew + ` AS wanted
    FROM (SELECT *, xmin AS xid FROM outcome
          WHERE finished_at >= @at AND finished_at <= @last
            AND (finished_at, id, coalesce(handler_id, 0), claim_seq) > (@at, @id, @delivery_handler, @claim_seq)
          ORDER BY finished_at, id, coalesce(handler_id, 0), claim_seq LIMIT @step) AS step` + tailWriter + `
) AS c
WHERE wanted OR n = @step
ORDER BY n`

// ledgerRow is a row of either, and its place.
type ledgerRow struct {
	inbox.DeliveryState
	key      tailRowKey
	no       int
	isWanted bool
}

func scanNewAttempt(row pgx.CollectableRow) (*ledgerRow, error) {
	var (
		r        ledgerRow
		duration *time.Duration
	)
	err := row.Scan(&r.Message, &r.DeliveryID.Handler, &r.Handler, &r.SourceID, &r.Source, &r.key.At, &r.ClaimSeq, &r.ReplayNo,
		&r.RetryCount, &r.ResponseStatus, &duration, &r.LastError, &r.no, &r.isWanted)
	r.Duration = orZero(duration)
	r.key.ID, r.key.Handler, r.key.ClaimSeq = r.Message, r.DeliveryID.Handler, r.ClaimSeq
	return &r, err
}

func scanNewOutcome(row pgx.CollectableRow) (*ledgerRow, error) {
	var (
		r         ledgerRow
		duration  *time.Duration
		claimedAt *time.Time
		result    string
	)
	err := row.Scan(&r.Message, &r.DeliveryID.Handler, &r.Handler, &r.SourceID, &r.Source, &r.key.At, &r.ClaimSeq, &r.ReplayNo,
		&r.RetryCount, &r.ResponseStatus, &duration, &r.LastError, &result, &r.MaxRetryCount, &r.ReceivedAt, &claimedAt, &r.OrderingKey, &r.no, &r.isWanted)
	r.Duration, r.ClaimedAt, r.Status, r.FinishedAt = orZero(duration), orZero(claimedAt), inbox.Status(result), r.key.At
	r.key.ID, r.key.Handler, r.key.ClaimSeq = r.Message, r.DeliveryID.Handler, r.ClaimSeq
	return &r, err
}

func tailAttempts(ctx context.Context, db *DB, f inbox.Filter, seen tailView, span *tailSpan) (tailPart, error) {
	return tailLedger(ctx, db, newAttempts, scanNewAttempt, f, seen, span)
}

func tailOutcomes(ctx context.Context, db *DB, f inbox.Filter, seen tailView, span *tailSpan) (tailPart, error) {
	return tailLedger(ctx, db, newOutcomes, scanNewOutcome, f, seen, span)
}

func tailLedger(ctx context.Context, db *DB, statement string, scan pgx.RowToFunc[*ledgerRow], f inbox.Filter, seen tailView, span *tailSpan) (part tailPart, err error) {
	after := span.After
	if after.At.IsZero() {
		after.At = span.From.At
	}
	rows, _ := db.pool.Query(ctx, statement, planned, pgx.StrictNamedArgs{
		"source": f.SourceID, "handler": f.HandlerID, "until": span.Until.Snapshot, "seen": seen.Snapshot, "at": after.At, "id": after.ID,
		"delivery_handler": after.Handler, "claim_seq": after.ClaimSeq, "last": span.To.At, "step": tailStep,
	})
	found, err := pgx.CollectRows(rows, scan)
	if err != nil {
		return part, err
	}
	var ids idSpan
	for _, r := range found {
		part.last, part.full = r.key, r.no == tailStep
		if r.isWanted {
			ids.add(r.Message, r.ReceivedAt)
		}
	}
	messages, err := db.messagesOf(ctx, ids)
	if err != nil {
		return part, err
	}
	byID := make(map[int64]*inbox.MessageState, len(messages))
	for _, m := range messages {
		byID[m.ID] = m
	}
	for _, r := range found {
		m := byID[r.Message]
		if !r.isWanted || m == nil || !f.Within.Source(r.SourceID) || !f.Within.Handler(r.DeliveryID.Handler) {
			continue
		}
		r.MessageID, r.MessageType, r.BizKey, r.ReceivedAt = m.MessageID, m.MessageType, m.BizKey, m.ReceivedAt
		if r.Status == "" {
			r.failed(m)
		}
		if (f.MessageType == "" || r.MessageType == f.MessageType) && (f.Status == "" || r.Status == f.Status) {
			part.events = append(part.events, tailed{inbox.TailEvent{Delivery: &r.DeliveryState}, r.key})
		}
	}
	return part, nil
}

// failed fills in what an attempt's row doesn't have from the delivery as it is now. If that has moved on already, it
// was FAILED for all that is known.
func (r *ledgerRow) failed(m *inbox.MessageState) {
	r.Status = inbox.Failed
	i := slices.IndexFunc(m.Deliveries, func(d inbox.DeliveryState) bool { return d.DeliveryID == r.DeliveryID })
	if i < 0 {
		r.RetryCount++
		return
	}
	now := m.Deliveries[i]
	r.OrderingKey, r.MaxRetryCount = now.OrderingKey, now.MaxRetryCount
	if now.ClaimSeq == r.ClaimSeq && (now.Status == inbox.Failed || now.Status == inbox.ManualRequired) {
		r.Status, r.RetryCount, r.NextRetryTime = now.Status, now.RetryCount, now.NextRetryTime
		return
	}
	r.RetryCount = min(r.RetryCount+1, r.MaxRetryCount)
}
