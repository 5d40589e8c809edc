package postgres

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/inboxd/inboxd/inbox"
)

// lookUp takes the newest messages that have a key in any of three ways; each has its index.
const lookUp = `
SELECT DISTINCT id
FROM ((SELECT id FROM inbox_message WHERE biz_key = @key AND id < @before ORDER BY id DESC LIMIT @step)
      UNION ALL
      (SELECT id FROM inbox_message WHERE ordering_key = @key AND id < @before ORDER BY id DESC LIMIT @step)
      UNION ALL
      (SELECT k.id FROM source AS s JOIN inbox_key AS k ON k.source_id = s.id AND k.message_id = @key
       WHERE k.id < @before)) AS found
ORDER BY id DESC LIMIT @step`

// lookUpLooks is how often a page may look for more where a reach leaves messages out.
const lookUpLooks = 10

// LookUp returns a page of the messages of any source within reach whose business key, ordering key or message id is
// key, with their deliveries, the newest first.
func (db *DB) LookUp(ctx context.Context, within *inbox.Reach, key string, after inbox.DeliveryID, limit int) (page inbox.Page[*inbox.MessageState], err error) {
	page.Next = after
	for range lookUpLooks {
		messages, next, err := db.lookUp(ctx, key, page.Next.Message, limit-len(page.Items))
		if err != nil {
			return page, fmt.Errorf("look up a key: %w", mapError(err))
		}
		for _, m := range messages {
			if within.Source(m.SourceID) {
				m.Limit(within)
				page.Items = append(page.Items, m)
			}
		}
		if page.Next = (inbox.DeliveryID{Message: next}); next == 0 || len(page.Items) == limit || within == nil {
			break
		}
	}
	return page, nil
}

// lookUp takes the next messages below a number, and returns the number to continue below, 0 at the end.
func (db *DB) lookUp(ctx context.Context, key string, before int64, limit int) (messages []*inbox.MessageState, next int64, err error) {
	if before == 0 {
		before = math.MaxInt64
	}
	args := pgx.StrictNamedArgs{"key": key, "before": before, "step": limit + 1}
	rows, _ := db.pool.Query(ctx, lookUp, planned, args)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err == nil && len(ids) > limit {
		ids = ids[:limit]
		next = ids[limit-1]
	}
	if err == nil && len(ids) > 0 {
		// A key outlives its message, so there may be fewer.
		w := walkArgs{before: ids[0] + 1, first: slices.Min(ids), ids: ids, step: len(ids)}
		if messages, _, _, err = stepMessages(ctx, db.pool, w); err == nil {
			err = addDeliveries(ctx, db.pool, messages)
		}
	}
	return messages, next, err
}
