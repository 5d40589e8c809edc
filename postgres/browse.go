package postgres

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/inboxd/inboxd/inbox"
)

// Lists walk messages from the newest number down, in bounded steps: a step takes the next candidates that
// an index serves and drops those that the other filters don't want. What one page may look at is bounded
// as well, so a filter that matches next to nothing gives short pages instead of a scan of everything.
const (
	messageStep = 500   // messages of a step
	liveStep    = 5_000 // rows of a step through delivery: narrow ones, in the order of its primary key
	maxWalked   = 5_000 // messages that one page may look into; ten rows of delivery count as one
)

// clockSkew is how far the order of numbers and the order of times may differ. A message's time is that of
// the start of its transaction, which may have waited for a lock before it drew a number.
const clockSkew = time.Minute

// ledgerSlack is what finished_at may lie before received_at: after a failover the clock is another one.
const ledgerSlack = time.Hour

// ListMessages returns a page of messages, the newest first, that continues after the position.
func (db *DB) ListMessages(ctx context.Context, f inbox.Filter, after inbox.DeliveryID, limit int) (inbox.Page[*inbox.MessageState], error) {
	var page inbox.Page[*inbox.MessageState]
	before := after.Message
	if before == 0 {
		before = math.MaxInt64
	}
	next, err := db.walk(ctx, f, before, limit+1, func(m *inbox.MessageState) bool {
		if wanted(m, f) {
			page.Items = append(page.Items, m)
		}
		return len(page.Items) > limit
	})
	if err != nil {
		return page, fmt.Errorf("list messages: %w", mapError(err))
	}
	if len(page.Items) > limit {
		page.Items = page.Items[:limit]
		next = page.Items[limit-1].ID
	}
	page.Next = inbox.DeliveryID{Message: next}
	return page, nil
}

func wanted(m *inbox.MessageState, f inbox.Filter) bool {
	switch {
	case f.HandlerID != 0:
		return slices.ContainsFunc(m.Deliveries, func(d inbox.DeliveryState) bool { return wantedDelivery(d, f) })
	case f.Status == inbox.Discarded:
		return m.Status == inbox.Done && m.Discarded
	}
	return f.Status == "" || m.Status == f.Status
}

func wantedDelivery(d inbox.DeliveryState, f inbox.Filter) bool {
	return (f.HandlerID == 0 || d.DeliveryID.Handler == f.HandlerID) && (f.Status == "" || d.Status == f.Status) &&
		(f.ResponseStatus == 0 || f.ResponseStatus >= leastFailed || d.ResponseStatus == f.ResponseStatus)
}

// ListDeliveries returns a page of deliveries, those of the newest message first, that continues after the
// position.
func (db *DB) ListDeliveries(ctx context.Context, f inbox.Filter, after inbox.DeliveryID, limit int) (inbox.Page[inbox.DeliveryState], error) {
	var page inbox.Page[inbox.DeliveryState]
	before := after.Message
	switch {
	case before == 0:
		before = math.MaxInt64
	case after.Handler != 0:
		before++ // other deliveries of this message are left
	}
	next, err := db.walk(ctx, f, before, limit+1, func(m *inbox.MessageState) bool {
		for _, d := range m.Deliveries {
			seen := m.ID == after.Message && d.DeliveryID.Handler >= after.Handler
			if !seen && wantedDelivery(d, f) {
				page.Items = append(page.Items, d)
			}
		}
		return len(page.Items) > limit
	})
	if err != nil {
		return page, fmt.Errorf("list deliveries: %w", mapError(err))
	}
	page.Next = inbox.DeliveryID{Message: next}
	if len(page.Items) > limit {
		page.Items = page.Items[:limit]
		page.Next = page.Items[limit-1].DeliveryID
	}
	return page, nil
}

// walk calls take with each candidate of the filter, with its deliveries and below before, until take has
// enough. It returns the number that it has come down to, or 0 if there is nothing below. The filter's
// message type, source and times are applied; its status and handler are for take, which sees all deliveries.
func (db *DB) walk(ctx context.Context, f inbox.Filter, before int64, want int, take func(*inbox.MessageState) bool) (int64, error) {
	w := walkArgs{
		source: f.SourceID, handler: f.HandlerID, status: f.Status, bizKey: f.BizKey, orderingKey: f.OrderingKey, from: f.From, to: f.To, within: f.Within,
	}
	if f.MessageID != "" {
		var err error
		if w.ids, err = db.idsOf(ctx, f.SourceID, f.MessageID); err != nil || len(w.ids) == 0 {
			return 0, err
		}
	}
	if !f.From.IsZero() {
		var err error
		if w.first, err = db.firstAt(ctx, f.From.Add(-clockSkew)); err != nil {
			return 0, err
		}
	}
	if !f.To.IsZero() {
		last, err := db.firstAt(ctx, f.To.Add(clockSkew))
		if err != nil {
			return 0, err
		}
		before = min(before, last)
	}

	// Few deliveries are unfinished, and few messages UNROUTED, so it is they who lead to the messages, unless a key leads
	// there directly.
	// Failures are fewer still.
	keyed := f.MessageID != "" || f.BizKey != "" || f.OrderingKey != ""
	failed := failedOnly(f)
	live := f.Status != "" && (!f.Status.Finished() || f.Status == inbox.Unrouted) && !keyed && !failed
	some := f.Within != nil && f.Within.Sources != nil && f.SourceID == 0 && !keyed && !failed && !live
	w.step = messageStep
	if f.MessageType == "" && f.Status == "" && f.HandlerID == 0 && f.ErrorClass == "" && f.ResponseStatus == 0 &&
		(f.Within == nil || f.Within.Handlers == nil && !keyed) {
		w.step = want // every candidate counts
	}
	for walked := 0; walked < maxWalked; {
		w.before = before
		var (
			messages []*inbox.MessageState
			rest     int64
			looked   int
			err      error
		)
		switch {
		case failed && !keyed:
			messages, rest, looked, err = db.stepFailed(ctx, w, f)
		case live, some:
			messages, rest, looked, err = db.stepLive(ctx, w)
		default:
			messages, rest, looked, err = stepMessages(ctx, db.pool, w)
		}
		if err != nil {
			return 0, err
		}
		messages = slices.DeleteFunc(messages, func(m *inbox.MessageState) bool {
			return f.MessageType != "" && m.MessageType != f.MessageType || !f.Within.Source(m.SourceID)
		})
		if err := addDeliveries(ctx, db.pool, messages); err != nil {
			return 0, err
		}
		for _, m := range messages {
			m.Limit(f.Within)
		}
		if failed {
			if err := db.keepFailed(ctx, f, messages); err != nil {
				return 0, err
			}
		}
		for _, m := range messages {
			if take(m) {
				return m.ID, nil
			}
		}
		if rest == 0 {
			return 0, nil
		}
		before, walked = rest, walked+looked
	}
	return before, nil
}

type walkArgs struct {
	before, first   int64 // numbers: below before, from first on
	source, handler int64
	status          inbox.Status
	bizKey          string
	orderingKey     string
	ids             []int64   // nil: any
	from, to        time.Time // received at from or later, before to; zero: open
	step            int       // the most candidates
	within          *inbox.Reach
}

// withReach adds what each statement asks for that heeds a reach. NULL is everything.
func withReach(r *inbox.Reach, args pgx.StrictNamedArgs) pgx.StrictNamedArgs {
	args["sources"], args["handlers"] = []int64(nil), []int64(nil)
	if r != nil {
		args["sources"], args["handlers"] = r.Sources, r.Handlers
	}
	return args
}

// firstAt finds about where a time is among the numbers, by bisection: no index has the time, but numbers
// grow with it.
const firstAt = `
WITH RECURSIVE step AS (
    SELECT min(id) AS low, max(id) + 1 AS high FROM inbox_message
    UNION ALL
    SELECT CASE WHEN m.received_at < @time THEN m.id + 1 ELSE s.low END,
           CASE WHEN m.received_at < @time THEN s.high ELSE s.low + (s.high - s.low) / 2 END
    FROM step AS s
    CROSS JOIN LATERAL (SELECT id, received_at FROM inbox_message
                        WHERE id >= s.low + (s.high - s.low) / 2 ORDER BY id LIMIT 1) AS m
    WHERE s.low < s.high
)
SELECT coalesce(max(low), 0) FROM step`

func (db *DB) firstAt(ctx context.Context, t time.Time) (id int64, err error) {
	err = db.pool.QueryRow(ctx, firstAt, planned, pgx.StrictNamedArgs{"time": t}).Scan(&id)
	return id, err
}

// idsOf resolves a provider's id through the unique key, for one source or for each.
const idsOf = `
SELECT k.id FROM source AS s JOIN inbox_key AS k ON k.source_id = s.id AND k.message_id = @message_id
WHERE @source::bigint = 0 OR s.id = @source`

func (db *DB) idsOf(ctx context.Context, source int64, messageID string) ([]int64, error) {
	rows, _ := db.pool.Query(ctx, idsOf, planned, pgx.StrictNamedArgs{"source": source, "message_id": messageID})
	return pgx.CollectRows(rows, pgx.RowTo[int64])
}

const messageColumns = `
SELECT id, received_at, source_id, message_id, message_type, event_time, coalesce(biz_key, ''),
       coalesce(ordering_key, ''), content_type, octet_length(body),
       coalesce((SELECT name FROM source AS s WHERE s.id = m.source_id), '')`

// walkMessages takes the next messages by number. The times leave partitions out.
const walkMessages = messageColumns + `
FROM inbox_message AS m
WHERE id < @before AND id >= @first
  AND (@source::bigint = 0 OR source_id = @source)
  AND (@biz_key::text = '' OR biz_key = @biz_key)
  AND (@ordering_key::text = '' OR ordering_key = @ordering_key)
  AND (@ids::bigint[] IS NULL OR id = ANY (@ids))
  AND received_at >= @from AND received_at < @to
ORDER BY id DESC LIMIT @step`

func stepMessages(ctx context.Context, conn execer, w walkArgs) (messages []*inbox.MessageState, rest int64, looked int, err error) {
	rows, _ := conn.Query(ctx, walkMessages, planned, pgx.StrictNamedArgs{
		"before": w.before, "first": w.first, "source": w.source, "biz_key": w.bizKey, "ordering_key": w.orderingKey, "ids": w.ids,
		"from": orInfinity(w.from, pgtype.NegativeInfinity), "to": orInfinity(w.to, pgtype.Infinity), "step": w.step,
	})
	messages, err = pgx.CollectRows(rows, scanMessageState)
	if err == nil && len(messages) == w.step {
		rest = messages[len(messages)-1].ID
	}
	return messages, rest, len(messages), err
}

func scanMessageState(row pgx.CollectableRow) (*inbox.MessageState, error) {
	var (
		m         inbox.MessageState
		eventTime *time.Time
	)
	err := row.Scan(&m.ID, &m.ReceivedAt, &m.SourceID, &m.MessageID, &m.MessageType, &eventTime, &m.BizKey,
		&m.OrderingKey, &m.ContentType, &m.BodySize, &m.Source)
	m.EventTime = orZero(eventTime)
	return &m, err
}

// Each status that a delivery can have before it is finished, and UNROUTED, has its own way to the newest messages, and
// so have some sources. All give id, received_at, whether a delivery is one that is looked for, and how many rows were looked at.
const (
	// walkParked merges the newest of each handler: the index has them by handler.
	walkParked = `
SELECT DISTINCT d.id, d.received_at, @sources::bigint[] IS NULL OR d.source_id = ANY (@sources), 1
FROM handler AS h
CROSS JOIN LATERAL (
    SELECT id, received_at, source_id FROM delivery
    WHERE handler_id = h.id AND status = 'MANUAL_REQUIRED' AND id < @before AND id >= @first
    ORDER BY id DESC LIMIT @step
) AS d
WHERE (@handler::bigint = 0 OR h.id = @handler) AND (@handlers::bigint[] IS NULL OR h.id = ANY (@handlers))
ORDER BY d.id DESC LIMIT @step`

	// walkProcessing reads all claims; handlers' concurrency keeps them few.
	walkProcessing = `
WITH claimed AS MATERIALIZED (SELECT id, handler_id, source_id, received_at FROM delivery WHERE status = 'PROCESSING')
SELECT DISTINCT id, received_at, true, 1 FROM claimed
WHERE id < @before AND id >= @first AND (@handler::bigint = 0 OR handler_id = @handler)
  AND (@handlers::bigint[] IS NULL OR handler_id = ANY (@handlers)) AND (@sources::bigint[] IS NULL OR source_id = ANY (@sources))
ORDER BY id DESC LIMIT @step`

	// walkUnrouted takes those that reached no handler when they came. A message whose delivery is asked for is none.
	walkUnrouted = `
SELECT id, received_at, @sources::bigint[] IS NULL OR source_id = ANY (@sources), 1 FROM outcome
WHERE result = 'UNROUTED' AND id < @before AND id >= @first AND @handler::bigint = 0
ORDER BY id DESC LIMIT @step`

	// walkUnfinished goes through all unfinished deliveries: PENDING, FAILED and WAITING are indexed by when
	// they are due, not by number.
	walkUnfinished = `
SELECT id, received_at,
       bool_or(status = @status AND (@handler::bigint = 0 OR handler_id = @handler)
               AND (@handlers::bigint[] IS NULL OR handler_id = ANY (@handlers))
               AND (@sources::bigint[] IS NULL OR source_id = ANY (@sources))),
       count(*)
FROM (SELECT id, handler_id, source_id, received_at, status FROM delivery
      WHERE id < @before AND id >= @first ORDER BY id DESC LIMIT @step) AS d
GROUP BY id, received_at
ORDER BY id DESC`

	// walkSources merges the newest of each source, for those who may see some only: a walk by number would go through
	// all messages of the others.
	walkSources = `
SELECT m.id, m.received_at, true, 1
FROM unnest(@sources::bigint[]) AS s (id)
CROSS JOIN LATERAL (
    SELECT id, received_at FROM inbox_message
    WHERE source_id = s.id AND id < @before AND id >= @first AND received_at >= @from AND received_at < @to
    ORDER BY id DESC LIMIT @step
) AS m
ORDER BY m.id DESC LIMIT @step`
)

// candidate is a message that a step came upon.
type candidate struct {
	id     int64
	at     time.Time
	wanted bool
	rows   int // that were looked at
}

func scanCandidate(row pgx.CollectableRow) (c candidate, err error) {
	err = row.Scan(&c.id, &c.at, &c.wanted, &c.rows)
	return c, err
}

// liveStatement chooses the way to the messages, and how many rows a step of it takes.
func liveStatement(w *walkArgs) (string, pgx.StrictNamedArgs) {
	args := pgx.StrictNamedArgs{"before": w.before, "first": w.first, "step": w.step}
	if w.status == "" || w.status.Finished() && w.status != inbox.Unrouted {
		args["sources"] = w.within.Sources
		args["from"], args["to"] = orInfinity(w.from, pgtype.NegativeInfinity), orInfinity(w.to, pgtype.Infinity)
		return walkSources, args
	}
	args["handler"] = w.handler
	withReach(w.within, args)
	switch w.status {
	case inbox.ManualRequired:
		return walkParked, args
	case inbox.Processing:
		return walkProcessing, args
	case inbox.Unrouted:
		delete(args, "handlers")
		return walkUnrouted, args
	}
	w.step = liveStep
	args["status"], args["step"] = string(w.status), w.step
	return walkUnfinished, args
}

// stepLive takes the next messages that have an unfinished delivery of the status, are UNROUTED, or are of some sources.
func (db *DB) stepLive(ctx context.Context, w walkArgs) (messages []*inbox.MessageState, rest int64, looked int, err error) {
	statement, args := liveStatement(&w)
	rows, _ := db.pool.Query(ctx, statement, planned, args)
	candidates, err := pgx.CollectRows(rows, scanCandidate)
	if err != nil {
		return nil, 0, 0, err
	}
	for _, c := range candidates {
		looked += c.rows
	}
	if looked == w.step {
		if len(candidates) > 1 && statement == walkUnfinished {
			// The step may have ended among the deliveries of its last message.
			candidates = candidates[:len(candidates)-1]
		}
		rest = candidates[len(candidates)-1].id
	}
	candidates = slices.DeleteFunc(candidates, func(c candidate) bool { return !c.wanted })
	if len(candidates) > messageStep {
		candidates = candidates[:messageStep]
		rest = candidates[messageStep-1].id
	}
	looked = max(looked/10, len(candidates))
	if len(candidates) == 0 {
		return nil, rest, looked, nil
	}
	// Their own span of time leaves out the partitions of other days.
	first, last := candidates[0].at, candidates[0].at
	for _, c := range candidates {
		w.ids = append(w.ids, c.id)
		if c.at.Before(first) {
			first = c.at
		}
		if c.at.After(last) {
			last = c.at
		}
	}
	if w.from.Before(first) {
		w.from = first
	}
	if last = last.Add(time.Microsecond); w.to.IsZero() || w.to.After(last) {
		w.to = last
	}
	w.step = len(w.ids)
	messages, _, _, err = stepMessages(ctx, db.pool, w)
	return messages, rest, looked, err
}

// readDeliveries reads the unfinished deliveries of messages and the latest outcomes.
const readDeliveries = `
SELECT d.*, coalesce((SELECT name FROM handler AS h WHERE h.id = d.handler_id), '')
FROM (
    SELECT id, coalesce(handler_id, 0) AS handler_id, status, retry_count, max_retry_count,
           CASE WHEN status IN ('PENDING', 'FAILED') THEN next_retry_time END, claim_seq, claimed_at, lease_until,
           coalesce(owner, ''), replay_no, coalesce(ordering_key, ''), coalesce(last_error, ''),
           NULL::timestamptz AS finished_at, 0, NULL::interval, 0::bigint
    FROM delivery WHERE id = ANY (@ids)
    UNION ALL
    (SELECT DISTINCT ON (id, handler_id)
            id, coalesce(handler_id, 0), result, greatest(attempts - 1, 0), max_retry_count,
            NULL, claim_seq, claimed_at, NULL,
            '', replay_no, coalesce(ordering_key, ''), coalesce(last_error, ''),
            finished_at, response_status, duration, coalesce(dup_of, 0)
     FROM outcome WHERE id = ANY (@ids) AND finished_at >= @since
     ORDER BY id, handler_id, replay_no DESC)
) AS d
ORDER BY d.id DESC, d.handler_id DESC, d.finished_at DESC NULLS FIRST`

// addDeliveries fills in the deliveries of messages, the highest handler first, and each message's status.
func addDeliveries(ctx context.Context, conn execer, messages []*inbox.MessageState) error {
	if len(messages) == 0 {
		return nil
	}
	ids := make([]int64, len(messages))
	byID := make(map[int64]*inbox.MessageState, len(messages))
	since := messages[0].ReceivedAt
	for i, m := range messages {
		ids[i], byID[m.ID] = m.ID, m
		if m.ReceivedAt.Before(since) {
			since = m.ReceivedAt
		}
	}
	rows, _ := conn.Query(ctx, readDeliveries, planned, pgx.StrictNamedArgs{"ids": ids, "since": since.Add(-ledgerSlack)})
	deliveries, err := pgx.CollectRows(rows, scanDelivery)
	if err != nil {
		return err
	}
	for _, d := range deliveries {
		m := byID[d.Message]
		if n := len(m.Deliveries); n > 0 && m.Deliveries[n-1].DeliveryID == d.DeliveryID {
			continue // the outcome of an earlier run: the delivery is being replayed
		}
		d.Source, d.SourceID, d.MessageID, d.MessageType, d.BizKey = m.Source, m.SourceID, m.MessageID, m.MessageType, m.BizKey
		d.ReceivedAt = m.ReceivedAt
		m.Deliveries = append(m.Deliveries, d)
	}
	for _, m := range messages {
		m.Status = inbox.Done // if its ledger is gone already
		if last := len(m.Deliveries) - 1; last >= 0 && m.Deliveries[last].DeliveryID.Handler == 0 {
			// It reached no handler, and gives way as soon as there is one.
			m.CameToNone = true
			m.Status, m.DupOf = m.Deliveries[last].Status, m.Deliveries[last].DupOf
			m.Deliveries = m.Deliveries[:last]
		}
		if len(m.Deliveries) > 0 {
			statuses := make([]inbox.Status, len(m.Deliveries))
			for i, d := range m.Deliveries {
				statuses[i] = d.Status
			}
			m.Status, m.Discarded = inbox.MessageStatus(statuses...)
		}
	}
	return nil
}

func scanDelivery(row pgx.CollectableRow) (inbox.DeliveryState, error) {
	var (
		d                                          inbox.DeliveryState
		status                                     string
		nextRetry, claimedAt, leaseUntil, finished *time.Time
		duration                                   *time.Duration
	)
	err := row.Scan(&d.Message, &d.DeliveryID.Handler, &status, &d.RetryCount, &d.MaxRetryCount, &nextRetry, &d.ClaimSeq,
		&claimedAt, &leaseUntil, &d.Owner, &d.ReplayNo, &d.OrderingKey, &d.LastError, &finished, &d.ResponseStatus,
		&duration, &d.DupOf, &d.Handler)
	d.Status = inbox.Status(status)
	d.NextRetryTime, d.ClaimedAt, d.LeaseUntil, d.FinishedAt = orZero(nextRetry), orZero(claimedAt), orZero(leaseUntil), orZero(finished)
	d.Duration = orZero(duration)
	return d, err
}

const readPayload = `SELECT headers, body FROM inbox_message WHERE id = @id AND received_at = @received_at`

// Message returns a message with its headers, body and deliveries, or ErrNotFound.
func (db *DB) Message(ctx context.Context, id int64) (*inbox.MessageState, error) {
	m, err := messageState(ctx, db.pool, id)
	if err == nil {
		args := pgx.StrictNamedArgs{"id": id, "received_at": m.ReceivedAt}
		err = db.pool.QueryRow(ctx, readPayload, planned, args).Scan(&m.Headers, &m.Body)
	}
	if err != nil {
		return nil, fmt.Errorf("read message %d: %w", id, mapError(err))
	}
	return m, nil
}

// messageState reads one message and its deliveries.
func messageState(ctx context.Context, conn execer, id int64) (*inbox.MessageState, error) {
	messages, _, _, err := stepMessages(ctx, conn, walkArgs{before: id + 1, first: id, step: 1})
	if err != nil {
		return nil, err
	}
	if len(messages) == 0 {
		return nil, pgx.ErrNoRows
	}
	return messages[0], addDeliveries(ctx, conn, messages)
}

func (db *DB) delivery(ctx context.Context, id inbox.DeliveryID) (inbox.DeliveryState, error) {
	m, err := messageState(ctx, db.pool, id.Message)
	if err != nil {
		return inbox.DeliveryState{}, err
	}
	for _, d := range m.Deliveries {
		if d.DeliveryID == id {
			return d, nil
		}
	}
	return inbox.DeliveryState{}, pgx.ErrNoRows
}

const (
	readAttempts = `
SELECT finished_at, claim_seq, replay_no, retry_count, stale, response_status, duration, class, error, owner,
       response_body
FROM attempt
WHERE id = @id AND handler_id = @handler AND finished_at >= @since
ORDER BY finished_at DESC, claim_seq DESC LIMIT 1000`

	readOutcomes = `
SELECT finished_at, result, replay_no, claim_seq, attempts, max_retry_count, response_status, duration,
       coalesce(last_error, '')
FROM outcome
WHERE id = @id AND handler_id = @handler AND finished_at >= @since
ORDER BY replay_no`
)

// Delivery returns a delivery with its attempts and outcomes, or ErrNotFound.
func (db *DB) Delivery(ctx context.Context, id inbox.DeliveryID) (*inbox.DeliveryDetail, error) {
	d, err := db.delivery(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("read delivery %s: %w", id, mapError(err))
	}
	detail := &inbox.DeliveryDetail{DeliveryState: d}
	args := pgx.StrictNamedArgs{"id": id.Message, "handler": id.Handler, "since": d.ReceivedAt.Add(-ledgerSlack)}
	rows, _ := db.pool.Query(ctx, readAttempts, planned, args)
	detail.Attempts, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (a inbox.Attempt, err error) {
		var (
			duration *time.Duration
			class    string
		)
		err = row.Scan(&a.FinishedAt, &a.ClaimSeq, &a.ReplayNo, &a.RetryCount, &a.Stale, &a.ResponseStatus, &duration,
			&class, &a.Error, &a.Owner, &a.ResponseBody)
		a.Duration, a.Class = orZero(duration), inbox.Class(class)
		return a, err
	})
	if err != nil {
		return nil, fmt.Errorf("read attempts of %s: %w", id, mapError(err))
	}
	slices.Reverse(detail.Attempts)
	rows, _ = db.pool.Query(ctx, readOutcomes, planned, args)
	detail.Outcomes, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (o inbox.Outcome, err error) {
		var (
			duration *time.Duration
			result   string
		)
		err = row.Scan(&o.FinishedAt, &result, &o.ReplayNo, &o.ClaimSeq, &o.Attempts, &o.MaxRetryCount, &o.ResponseStatus,
			&duration, &o.LastError)
		o.Duration, o.Result = orZero(duration), inbox.Status(result)
		return o, err
	})
	if err != nil {
		return nil, fmt.Errorf("read outcomes of %s: %w", id, mapError(err))
	}
	return detail, nil
}

// orZero returns what p points at, or the zero value for NULL.
func orZero[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

// orInfinity is an open end of a range where the time is zero.
func orInfinity(t time.Time, open pgtype.InfinityModifier) pgtype.Timestamptz {
	if t.IsZero() {
		return pgtype.Timestamptz{InfinityModifier: open, Valid: true}
	}
	return pgtype.Timestamptz{Time: t, Valid: true}
}
