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

// LookUp returns a page of the messages of any source whose business key, ordering key or message id is key,
// with their deliveries, the newest first.
func (db *DB) LookUp(ctx context.Context, key string, after inbox.DeliveryID, limit int) (page inbox.Page[*inbox.MessageState], err error) {
	before := after.Message
	if before == 0 {
		before = math.MaxInt64
	}
	args := pgx.StrictNamedArgs{"key": key, "before": before, "step": limit + 1}
	rows, _ := db.pool.Query(ctx, lookUp, planned, args)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err == nil && len(ids) > limit {
		ids = ids[:limit]
		page.Next = inbox.DeliveryID{Message: ids[limit-1]}
	}
	if err == nil && len(ids) > 0 {
		// A key outlives its message, so there may be fewer.
		w := walkArgs{before: ids[0] + 1, first: slices.Min(ids), ids: ids, step: len(ids)}
		if page.Items, _, _, err = stepMessages(ctx, db.pool, w); err == nil {
			err = addDeliveries(ctx, db.pool, page.Items)
		}
	}
	if err != nil {
		return page, fmt.Errorf("look up a key: %w", mapError(err))
	}
	return page, nil
}
