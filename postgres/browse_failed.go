package postgres

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/inboxd/inboxd/inbox"
)

// leastFailed is the least response status that only a failed attempt has.
const leastFailed = 300

// failedOnly reports whether the filter wants deliveries of which an attempt has failed.
func failedOnly(f inbox.Filter) bool { return f.ErrorClass != "" || f.ResponseStatus >= leastFailed }

// failedMatch are the arguments of the condition on a failed attempt that both statements below have.
func failedMatch(f inbox.Filter, args pgx.StrictNamedArgs) pgx.StrictNamedArgs {
	args["class"], args["response_status"] = string(f.ErrorClass), 0
	if f.ResponseStatus >= leastFailed {
		args["response_status"] = f.ResponseStatus
	}
	return args
}

// walkFailed goes through the failed attempts by number of the message. Attempts before @since are of
// messages before the filter's time.
const walkFailed = `
SELECT id, max(finished_at),
       bool_or((@class::text = '' OR class = @class) AND (@response_status::int = 0 OR response_status = @response_status)
               AND (@handler::bigint = 0 OR handler_id = @handler)
               AND (@handlers::bigint[] IS NULL OR handler_id = ANY (@handlers))
               AND (@sources::bigint[] IS NULL OR source_id = ANY (@sources))),
       count(*)
FROM (SELECT id, handler_id, source_id, finished_at, class, response_status FROM attempt
      WHERE id < @before AND id >= @first AND finished_at >= @since
      ORDER BY id DESC LIMIT @step) AS a
GROUP BY id
ORDER BY id DESC`

// stepFailed takes the next messages of which an attempt failed as the filter says.
func (db *DB) stepFailed(ctx context.Context, w walkArgs, f inbox.Filter) (messages []*inbox.MessageState, rest int64, looked int, err error) {
	since := pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}
	if !f.From.IsZero() {
		since = orInfinity(f.From.Add(-ledgerSlack), pgtype.NegativeInfinity)
	}
	rows, _ := db.pool.Query(ctx, walkFailed, planned, failedMatch(f, withReach(w.within, pgx.StrictNamedArgs{
		"before": w.before, "first": w.first, "handler": w.handler, "since": since, "step": liveStep,
	})))
	candidates, err := pgx.CollectRows(rows, scanCandidate)
	if err != nil {
		return nil, 0, 0, err
	}
	for _, c := range candidates {
		looked += c.rows
	}
	if looked == liveStep {
		if len(candidates) > 1 {
			// The step may have ended among the attempts of its last message.
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
	var last time.Time
	for _, c := range candidates {
		w.ids = append(w.ids, c.id)
		if c.at.After(last) {
			last = c.at
		}
	}
	// No attempt is before its message: this leaves out the partitions of later days.
	if last = last.Add(ledgerSlack); w.to.IsZero() || w.to.After(last) {
		w.to = last
	}
	w.step = len(w.ids)
	messages, _, _, err = stepMessages(ctx, db.pool, w)
	return messages, rest, looked, err
}

const readFailed = `
SELECT DISTINCT id, handler_id FROM attempt
WHERE id = ANY (@ids) AND finished_at >= @since
  AND (@class::text = '' OR class = @class) AND (@response_status::int = 0 OR response_status = @response_status)`

// keepFailed drops the deliveries of which no attempt failed as the filter says.
func (db *DB) keepFailed(ctx context.Context, f inbox.Filter, messages []*inbox.MessageState) error {
	if len(messages) == 0 {
		return nil
	}
	var ids []int64
	since := messages[0].ReceivedAt
	for _, m := range messages {
		ids = append(ids, m.ID)
		if m.ReceivedAt.Before(since) {
			since = m.ReceivedAt
		}
	}
	rows, _ := db.pool.Query(ctx, readFailed, planned, failedMatch(f, pgx.StrictNamedArgs{"ids": ids, "since": since.Add(-ledgerSlack)}))
	failed, err := pgx.CollectRows(rows, pgx.RowToStructByPos[inbox.DeliveryID])
	if err != nil {
		return err
	}
	for _, m := range messages {
		m.Deliveries = slices.DeleteFunc(m.Deliveries, func(d inbox.DeliveryState) bool { return !slices.Contains(failed, d.DeliveryID) })
	}
	return nil
}
