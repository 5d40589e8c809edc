package postgres

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/inboxd/inboxd/inbox"
)

// Each of the statements below repeats the claim: a row whose token has changed is left alone.
//
// They find their rows by primary key, whatever the planner knows of the table, for the statistics of a table
// that fills and empties all day are never right. Hence two oddities. They don't say status = 'PROCESSING',
// which a CHECK ties to the token: it would make the index of leases look good, with a dead entry of every
// delivery since the last VACUUM. And their arrays stand in sub-selects, which hide the length: for 500 known
// rows a scan of the whole table looks cheaper than 500 look-ups, and isn't.
const (
	// recordDone finishes deliveries: the row goes, its outcome comes, as one statement.
	recordDone = `
WITH result AS (
    SELECT * FROM unnest((SELECT @ids::bigint[]), (SELECT @handlers::bigint[]), (SELECT @tokens::uuid[]), (SELECT @statuses::integer[]),
                         (SELECT @durations::interval[])) AS r (id, handler_id, token, response_status, duration)
), finished AS (
    DELETE FROM delivery AS d USING result AS r
    WHERE (d.id, d.handler_id) = (r.id, r.handler_id) AND d.claim_token = r.token
    RETURNING d.*, r.response_status, r.duration
), ledger AS (
    INSERT INTO outcome (id, handler_id, source_id, received_at, finished_at, claimed_at, claim_seq, claim_token,
                         replay_no, attempts, max_retry_count, response_status, duration, result, ordering_key)
    SELECT id, handler_id, source_id, received_at, now(), claimed_at, claim_seq, claim_token, replay_no,
           retry_count + 1, max_retry_count, response_status, duration, 'DONE', ordering_key
    FROM finished
)
SELECT id, handler_id, 'DONE' FROM finished`

	// recordFailed moves deliveries to FAILED, or to MANUAL_REQUIRED where no retry is left or none can help.
	recordFailed = `
WITH result AS (
    SELECT *
    FROM unnest((SELECT @ids::bigint[]), (SELECT @handlers::bigint[]), (SELECT @tokens::uuid[]), (SELECT @permanent::boolean[]), (SELECT @delays::interval[]),
                (SELECT @classes::text[]), (SELECT @statuses::integer[]), (SELECT @durations::interval[]), (SELECT @errors::text[]), (SELECT @bodies::bytea[]))
         AS r (id, handler_id, token, permanent, delay, class, response_status, duration, error, body)
), moved AS (
    UPDATE delivery AS d
    SET status = CASE WHEN r.permanent OR d.retry_count >= d.max_retry_count THEN 'MANUAL_REQUIRED' ELSE 'FAILED' END,
        retry_count = CASE WHEN r.permanent THEN d.retry_count ELSE least(d.retry_count + 1, d.max_retry_count) END,
        next_retry_time = CASE WHEN r.permanent OR d.retry_count >= d.max_retry_count THEN 'infinity'
                               ELSE now() + r.delay END,
        last_error = r.error, claim_token = NULL, claimed_at = NULL, lease_until = NULL, owner = NULL
    FROM result AS r
    WHERE (d.id, d.handler_id) = (r.id, r.handler_id) AND d.claim_token = r.token
    RETURNING d.id, d.handler_id, d.source_id, d.claim_seq, d.replay_no, d.status
), ledger AS (
    INSERT INTO attempt (id, handler_id, source_id, finished_at, claim_seq, claim_token, replay_no, retry_count,
                         response_status, duration, class, error, owner, response_body)
    SELECT m.id, m.handler_id, m.source_id, now(), m.claim_seq, r.token, m.replay_no, t.retry_count,
           r.response_status, r.duration, r.class, r.error, @owner, r.body
    FROM moved AS m JOIN result AS r USING (id, handler_id)
    JOIN unnest((SELECT @ids::bigint[]), (SELECT @handlers::bigint[]), (SELECT @retry_counts::integer[])) AS t (id, handler_id, retry_count)
         USING (id, handler_id)
)
SELECT id, handler_id, status FROM moved`

	// recordReleased gives deliveries back that were not sent, as they were before the claim.
	recordReleased = `
UPDATE delivery AS d
SET status = CASE WHEN d.retry_count = 0 THEN 'PENDING' ELSE 'FAILED' END, next_retry_time = now(),
    claim_token = NULL, claimed_at = NULL, lease_until = NULL, owner = NULL
FROM unnest((SELECT @ids::bigint[]), (SELECT @handlers::bigint[]), (SELECT @tokens::uuid[])) AS r (id, handler_id, token)
WHERE (d.id, d.handler_id) = (r.id, r.handler_id) AND d.claim_token = r.token
RETURNING d.id, d.handler_id, d.status`

	// recordLost looks at results that moved no row. One whose token is in the ledger was recorded before, by
	// a commit whose answer never came. The others lost their claim: they go into the ledger as stale, once.
	recordLost = `
WITH result AS (
    SELECT *
    FROM unnest((SELECT @ids::bigint[]), (SELECT @handlers::bigint[]), (SELECT @tokens::uuid[]), (SELECT @sources::bigint[]), (SELECT @seqs::bigint[]),
                (SELECT @replays::integer[]), (SELECT @retry_counts::integer[]), (SELECT @classes::text[]), (SELECT @statuses::integer[]),
                (SELECT @durations::interval[]), (SELECT @errors::text[]), (SELECT @bodies::bytea[]))
         AS r (id, handler_id, token, source_id, claim_seq, replay_no, retry_count, class, response_status,
               duration, error, body)
), known AS (
    SELECT r.id, r.handler_id, o.result AS status FROM result AS r
    JOIN outcome AS o ON (o.id, o.handler_id) = (r.id, r.handler_id) AND o.claim_token = r.token
    UNION ALL
    SELECT r.id, r.handler_id, CASE WHEN a.stale THEN '' ELSE 'FAILED' END FROM result AS r
    JOIN attempt AS a ON (a.id, a.handler_id) = (r.id, r.handler_id) AND a.claim_token = r.token
                     AND a.class <> 'lease_expired'
), stale AS (
    INSERT INTO attempt (id, handler_id, source_id, finished_at, claim_seq, claim_token, replay_no, retry_count,
                         stale, response_status, duration, class, error, owner, response_body)
    SELECT id, handler_id, source_id, now(), claim_seq, token, replay_no, retry_count, true, response_status,
           duration, class, error, @owner, body
    FROM result AS r WHERE NOT EXISTS (SELECT FROM known AS k WHERE (k.id, k.handler_id) = (r.id, r.handler_id))
)
SELECT id, handler_id, max(status) FROM known GROUP BY id, handler_id`
)

// Record writes results back, each under its claim, and reports result by result what came of it. It may
// be repeated after ErrUnavailable: what a lost commit recorded is found by its token.
func (db *DB) Record(ctx context.Context, owner string, results []inbox.Result) ([]inbox.Recorded, error) {
	recorded := make([]inbox.Recorded, len(results))
	err := db.persist(ctx, func(conn *pgx.Conn) error {
		at, err := record(ctx, conn, owner, results)
		if err != nil {
			return err
		}
		var lost []inbox.Result
		for _, r := range results {
			// A release that moved nothing has nothing to tell: the delivery was not sent.
			if _, ok := at[r.DeliveryID]; !ok && r.Verdict != inbox.VerdictRelease {
				lost = append(lost, r)
			}
		}
		if len(lost) > 0 {
			known, err := queryStatuses(ctx, conn, recordLost, lostArgs(owner, lost))
			if err != nil {
				return err
			}
			for id, status := range known {
				if status != "" {
					at[id] = status
				}
			}
		}
		for i, r := range results {
			status, ok := at[r.DeliveryID]
			recorded[i] = inbox.Recorded{Status: status, Stale: !ok}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("record %d results: %w", len(results), err)
	}
	return recorded, nil
}

// record runs the statement of each kind of result, each its own transaction.
func record(ctx context.Context, conn execer, owner string, results []inbox.Result) (map[inbox.DeliveryID]inbox.Status, error) {
	var done, failed, released []inbox.Result
	for _, r := range results {
		switch r.Verdict {
		case inbox.VerdictDone:
			done = append(done, r)
		case inbox.VerdictRelease:
			released = append(released, r)
		default:
			failed = append(failed, r)
		}
	}
	at := make(map[inbox.DeliveryID]inbox.Status, len(results))
	for _, part := range []struct {
		statement string
		results   []inbox.Result
		args      func([]inbox.Result) pgx.StrictNamedArgs
	}{
		{recordDone, done, doneArgs},
		{recordFailed, failed, func(r []inbox.Result) pgx.StrictNamedArgs { return failedArgs(owner, r) }},
		{recordReleased, released, claimArgs},
	} {
		if len(part.results) == 0 {
			continue
		}
		moved, err := queryStatuses(ctx, conn, part.statement, part.args(part.results))
		if err != nil {
			return nil, err
		}
		maps.Copy(at, moved)
	}
	return at, nil
}

func queryStatuses(ctx context.Context, conn execer, statement string, args pgx.StrictNamedArgs) (map[inbox.DeliveryID]inbox.Status, error) {
	rows, err := conn.Query(ctx, statement, planned, args)
	if err != nil {
		return nil, err
	}
	at := make(map[inbox.DeliveryID]inbox.Status)
	var (
		id     inbox.DeliveryID
		status string
	)
	_, err = pgx.ForEachRow(rows, []any{&id.Message, &id.Handler, &status}, func() error {
		at[id] = inbox.Status(status)
		return nil
	})
	return at, err
}

// column collects one field of each result.
func column[T any](results []inbox.Result, field func(*inbox.Result) T) []T {
	values := make([]T, len(results))
	for i := range results {
		values[i] = field(&results[i])
	}
	return values
}

func claimArgs(results []inbox.Result) pgx.StrictNamedArgs {
	return pgx.StrictNamedArgs{
		"ids":      column(results, func(r *inbox.Result) int64 { return r.Message }),
		"handlers": column(results, func(r *inbox.Result) int64 { return r.Handler }),
		"tokens":   column(results, func(r *inbox.Result) pgtype.UUID { return pgtype.UUID{Bytes: r.Token, Valid: true} }),
	}
}

func doneArgs(results []inbox.Result) pgx.StrictNamedArgs {
	args := claimArgs(results)
	args["statuses"] = column(results, func(r *inbox.Result) int32 { return int32(r.ResponseStatus) })
	args["durations"] = column(results, attemptDuration)
	return args
}

// attemptDuration is NULL where nobody knows how long the attempt took.
func attemptDuration(r *inbox.Result) *time.Duration {
	if r.Class == inbox.ClassLeaseExpired {
		return nil
	}
	return &r.Duration
}

func attemptArgs(owner string, results []inbox.Result) pgx.StrictNamedArgs {
	args := doneArgs(results)
	args["owner"] = owner
	args["retry_counts"] = column(results, func(r *inbox.Result) int32 { return int32(r.RetryCount) })
	args["classes"] = column(results, func(r *inbox.Result) string { return string(r.Class) })
	args["errors"] = column(results, func(r *inbox.Result) string { return storableText(r.Error) })
	args["bodies"] = column(results, func(r *inbox.Result) []byte { return notNil(r.ResponseBody) })
	return args
}

// notNil keeps an empty body from becoming NULL.
func notNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// maxErrorBytes is what delivery.last_error holds.
const maxErrorBytes = 1024

// validText makes a text acceptable to PostgreSQL.
func validText(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
}

// storableText is a valid text of at most maxErrorBytes, so that one odd error can't keep a batch of results
// from being recorded.
func storableText(text string) string {
	text = validText(text)
	if len(text) > maxErrorBytes {
		text = strings.ToValidUTF8(text[:maxErrorBytes], "")
	}
	return text
}

func failedArgs(owner string, results []inbox.Result) pgx.StrictNamedArgs {
	args := attemptArgs(owner, results)
	args["permanent"] = column(results, func(r *inbox.Result) bool { return r.Verdict == inbox.VerdictPermanent })
	args["delays"] = column(results, func(r *inbox.Result) time.Duration { return r.Delay })
	return args
}

func lostArgs(owner string, results []inbox.Result) pgx.StrictNamedArgs {
	args := attemptArgs(owner, results)
	args["sources"] = column(results, func(r *inbox.Result) int64 { return r.SourceID })
	args["seqs"] = column(results, func(r *inbox.Result) int64 { return r.ClaimSeq })
	args["replays"] = column(results, func(r *inbox.Result) int32 { return int32(r.ReplayNo) })
	return args
}
