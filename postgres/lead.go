package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/inboxd/inboxd/inbox"
)

// takeLead renews the lease of its owner, or takes one that has run out; each change of hands is a new term.
const takeLead = `
UPDATE leader
SET owner = @owner, expires_at = now() + @lease,
    term = CASE WHEN owner = @owner AND expires_at >= now() THEN term ELSE term + 1 END
WHERE owner = @owner OR expires_at < now()
RETURNING term`

// Lead takes or renews the leader's lease for owner. It returns the term, or 0 while another leads.
func (db *DB) Lead(ctx context.Context, owner string, lease time.Duration) (term int64, err error) {
	err = db.pool.QueryRow(ctx, takeLead, pgx.StrictNamedArgs{"owner": owner, "lease": lease}).Scan(&term)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return 0, fmt.Errorf("take the lead: %w", mapError(err))
	}
	return term, nil
}

// Yield ends owner's lease, so that another instance need not wait for it to run out.
func (db *DB) Yield(ctx context.Context, owner string) error {
	_, err := db.pool.Exec(ctx, `UPDATE leader SET expires_at = '-infinity' WHERE owner = @owner`,
		pgx.StrictNamedArgs{"owner": owner})
	if err != nil {
		return fmt.Errorf("give up the lead: %w", mapError(err))
	}
	return nil
}

// MakePartitions makes the partitions of today and of so many days ahead that are missing, and returns how
// many it made.
func (db *DB) MakePartitions(ctx context.Context, ahead int) (made int, err error) {
	err = db.pool.QueryRow(ctx, makePartition, pgx.StrictNamedArgs{"ahead": ahead}).Scan(&made)
	if err != nil {
		return 0, fmt.Errorf("make partitions: %w", mapError(err))
	}
	return made, nil
}

// readExpired locks a page of claims whose lease has run out. It waits for nobody: a row that is locked is
// just being recorded.
const readExpired = `
SELECT id, handler_id, claim_token, retry_count
FROM delivery
WHERE status = 'PROCESSING' AND lease_until < now()
ORDER BY lease_until LIMIT @page
FOR UPDATE SKIP LOCKED`

// Reclaim ends up to page claims whose lease has run out: each is a failed attempt of class lease_expired,
// so it counts as a retry and is parked when none is left. delay gives a handler's backoff.
func (db *DB) Reclaim(ctx context.Context, owner string, page int, delay func(handler int64, retryCount int) time.Duration) ([]inbox.Recorded, error) {
	var reclaimed []inbox.Recorded
	err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, readExpired, planned, pgx.StrictNamedArgs{"page": page})
		expired, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (inbox.Result, error) {
			r := inbox.Result{
				Verdict: inbox.VerdictRetry, Class: inbox.ClassLeaseExpired,
				Error: "the processor did not report back before its lease ran out",
			}
			var token pgtype.UUID
			err := row.Scan(&r.Message, &r.Handler, &token, &r.RetryCount)
			r.Token = token.Bytes
			r.Delay = delay(r.Handler, r.RetryCount)
			return r, err
		})
		if err != nil || len(expired) == 0 {
			return err
		}
		moved, err := record(ctx, tx, owner, expired)
		for _, status := range moved {
			reclaimed = append(reclaimed, inbox.Recorded{Status: status})
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reclaim: %w", mapError(err))
	}
	return reclaimed, nil
}

// discardOrphans ends deliveries of deleted handlers. Those in PROCESSING are left to their processor: what
// it did is worth recording, and afterwards the next page finds them. One branch for each partial index.
const discardOrphans = `
WITH orphan AS (
    SELECT d.id, d.handler_id
    FROM handler AS h
    CROSS JOIN LATERAL (
        SELECT * FROM (SELECT id, handler_id FROM delivery
                       WHERE handler_id = h.id AND status IN ('PENDING', 'FAILED')
                       LIMIT @page FOR UPDATE SKIP LOCKED) AS ready
        UNION ALL
        SELECT * FROM (SELECT id, handler_id FROM delivery
                       WHERE handler_id = h.id AND status = 'WAITING'
                       LIMIT @page FOR UPDATE SKIP LOCKED) AS waiting
        UNION ALL
        SELECT * FROM (SELECT id, handler_id FROM delivery
                       WHERE handler_id = h.id AND status = 'MANUAL_REQUIRED'
                       LIMIT @page FOR UPDATE SKIP LOCKED) AS parked
    ) AS d
    WHERE h.deleted_at IS NOT NULL
), finished AS (
    DELETE FROM delivery AS d USING orphan AS o WHERE (d.id, d.handler_id) = (o.id, o.handler_id)
    RETURNING d.*
)
INSERT INTO outcome (id, handler_id, source_id, received_at, finished_at, claim_seq, replay_no, attempts,
                     max_retry_count, result, ordering_key, last_error)
SELECT id, handler_id, source_id, received_at, now(), claim_seq, replay_no, retry_count, max_retry_count,
       'DISCARDED', ordering_key, 'the handler was deleted'
FROM finished`

// DiscardOrphans ends a page of deliveries of handlers that were deleted, and returns how many.
func (db *DB) DiscardOrphans(ctx context.Context, page int) (int, error) {
	tag, err := db.pool.Exec(ctx, discardOrphans, planned, pgx.StrictNamedArgs{"page": page})
	if err != nil {
		return 0, fmt.Errorf("discard deliveries of deleted handlers: %w", mapError(err))
	}
	return int(tag.RowsAffected()), nil
}

// readBacklogs counts by handler through the partial indexes, and stops at the cap.
const readBacklogs = `
SELECT h.id, ready.n, ready.age, parked.n
FROM handler AS h
CROSS JOIN LATERAL (
    SELECT count(*) AS n, coalesce(greatest(now() - min(next_retry_time), '0'), '0') AS age
    FROM (SELECT next_retry_time FROM delivery
          WHERE handler_id = h.id AND status IN ('PENDING', 'FAILED')
          ORDER BY next_retry_time LIMIT @cap) AS d
) AS ready
CROSS JOIN LATERAL (
    SELECT count(*) AS n
    FROM (SELECT FROM delivery WHERE handler_id = h.id AND status = 'MANUAL_REQUIRED' LIMIT @cap) AS d
) AS parked
WHERE h.deleted_at IS NULL`

// Backlogs counts what waits for each handler; no count goes beyond limit.
func (db *DB) Backlogs(ctx context.Context, limit int) ([]inbox.Backlog, error) {
	rows, _ := db.pool.Query(ctx, readBacklogs, planned, pgx.StrictNamedArgs{"cap": limit})
	backlogs, err := pgx.CollectRows(rows, pgx.RowToStructByPos[inbox.Backlog])
	if err != nil {
		return nil, fmt.Errorf("count backlogs: %w", mapError(err))
	}
	return backlogs, nil
}
