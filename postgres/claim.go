package postgres

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/inboxd/inboxd/inbox"
)

// claimReady claims the oldest ready deliveries of each handler that has free slots, from its lower bound
// on. The bound is what keeps it fast: without one it would start at the head of the index, among the dead
// entries of everything that was delivered before. SKIP LOCKED lets processors claim side by side, and LIMIT
// inside LATERAL locks exactly the rows that it returns. The row of now() comes even if nothing is ready.
const claimReady = `
WITH ready AS (
    SELECT d.id, d.handler_id, h.lease
    FROM unnest(@handlers::bigint[], @free::integer[], @bounds::timestamptz[], @leases::interval[])
         AS h (id, free, bound, lease)
    CROSS JOIN LATERAL (
        SELECT id, handler_id FROM delivery
        WHERE handler_id = h.id AND status IN ('PENDING', 'FAILED')
          AND next_retry_time BETWEEN h.bound AND now()
        ORDER BY next_retry_time, id LIMIT h.free
        FOR UPDATE SKIP LOCKED
    ) AS d
), claimed AS (
    UPDATE delivery AS d
    SET status = 'PROCESSING', claim_token = @token, claim_seq = nextval('claim_fence'), claimed_at = now(),
        lease_until = now() + r.lease, owner = @owner
    FROM ready AS r WHERE (d.id, d.handler_id) = (r.id, r.handler_id)
    RETURNING d.id, d.handler_id, d.source_id, d.received_at, d.next_retry_time, d.retry_count,
              d.max_retry_count, d.replay_no, d.claim_seq
)
SELECT now(), id, handler_id, source_id, received_at, next_retry_time, retry_count, max_retry_count, replay_no,
       claim_seq
FROM (SELECT) AS one LEFT JOIN claimed ON true
ORDER BY next_retry_time, id`

// Claim takes ready deliveries, at most as many as each Want has free slots, the longest due first. It
// returns the database's time as well: bounds are in that clock.
//
// On ErrUnavailable the claims may have been committed; their leases then run out.
func (db *DB) Claim(ctx context.Context, owner string, token inbox.Token, wants []inbox.Want) ([]inbox.Claim, time.Time, error) {
	var (
		handlers = make([]int64, len(wants))
		free     = make([]int32, len(wants))
		bounds   = make([]pgtype.Timestamptz, len(wants))
		leases   = make([]time.Duration, len(wants))
	)
	for i, w := range wants {
		handlers[i], free[i], leases[i] = w.HandlerID, int32(w.Free), w.Lease
		bounds[i] = pgtype.Timestamptz{Time: w.Bound, Valid: true}
		if w.Bound.IsZero() {
			bounds[i] = pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}
		}
	}
	rows, _ := db.pool.Query(ctx, claimReady, planned, pgx.StrictNamedArgs{
		"handlers": handlers, "free": free, "bounds": bounds, "leases": leases, "token": pgtype.UUID{Bytes: token, Valid: true},
		"owner": owner,
	})
	var (
		claims                             []inbox.Claim
		now                                time.Time
		id, handler, source, seq           *int64
		received, due                      *time.Time
		retryCount, maxRetryCount, replays *int
	)
	_, err := pgx.ForEachRow(rows, []any{&now, &id, &handler, &source, &received, &due, &retryCount, &maxRetryCount, &replays, &seq}, func() error {
		if id == nil {
			return nil
		}
		claims = append(claims, inbox.Claim{
			DeliveryID: inbox.DeliveryID{Message: *id, Handler: *handler}, SourceID: *source, Token: token, ClaimSeq: *seq,
			ReceivedAt: *received, NextRetryTime: *due, RetryCount: *retryCount, MaxRetryCount: *maxRetryCount, ReplayNo: *replays,
		})
		return nil
	})
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("claim deliveries: %w", mapError(err))
	}
	return claims, now, nil
}

// readMessages looks each message up by its primary key. LATERAL with LIMIT keeps the planner from scanning a
// partition whose statistics are still missing; the range leaves it with the partitions of these days to plan for.
const readMessages = `
SELECT m.*
FROM unnest(@ids::bigint[], @received::timestamptz[]) AS wanted (id, received_at)
CROSS JOIN LATERAL (
    SELECT id, received_at, source_id, message_id, message_type, event_time, biz_key, ordering_key, content_type,
           headers, body
    FROM inbox_message
    WHERE id = wanted.id AND received_at = wanted.received_at AND received_at BETWEEN @first AND @last LIMIT 1
) AS m`

// Messages reads the messages of claims, by number. One that is missing is left out.
func (db *DB) Messages(ctx context.Context, claims []inbox.Claim) (map[int64]*inbox.Message, error) {
	if len(claims) == 0 {
		return nil, nil
	}
	ids, received := make([]int64, len(claims)), make([]time.Time, len(claims))
	for i, c := range claims {
		ids[i], received[i] = c.Message, c.ReceivedAt
	}
	rows, _ := db.pool.Query(ctx, readMessages, planned, pgx.StrictNamedArgs{
		"ids": ids, "received": received,
		"first": slices.MinFunc(received, time.Time.Compare), "last": slices.MaxFunc(received, time.Time.Compare),
	})
	found, err := pgx.CollectRows(rows, scanMessage)
	if err != nil {
		return nil, fmt.Errorf("read messages: %w", mapError(err))
	}
	messages := make(map[int64]*inbox.Message, len(found))
	for _, m := range found {
		messages[m.ID] = m
	}
	return messages, nil
}

func scanMessage(row pgx.CollectableRow) (*inbox.Message, error) {
	var (
		m                   inbox.Message
		eventTime           *time.Time
		bizKey, orderingKey *string
	)
	err := row.Scan(&m.ID, &m.ReceivedAt, &m.SourceID, &m.MessageID, &m.MessageType, &eventTime, &bizKey, &orderingKey,
		&m.ContentType, &m.Headers, &m.Body)
	if eventTime != nil {
		m.EventTime = *eventTime
	}
	if bizKey != nil {
		m.BizKey = *bizKey
	}
	if orderingKey != nil {
		m.OrderingKey = *orderingKey
	}
	return &m, err
}
