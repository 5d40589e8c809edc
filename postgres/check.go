package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// CheckCount is how many rows of a kind there are.
type CheckCount struct {
	Name string
	Rows int64
}

// CheckViolation is an invariant that does not hold.
type CheckViolation struct {
	Invariant string   // its letter and text, as in ARCHITECTURE.md
	Rows      int64    // how many rows break it
	Examples  []string // up to five of their public ids
}

const readCounts = `
SELECT 'messages', count(*) FROM inbox_message
UNION ALL SELECT 'keys', count(*) FROM inbox_key
UNION ALL (SELECT 'deliveries ' || status, count(*) FROM delivery GROUP BY status ORDER BY status)
UNION ALL (SELECT 'outcomes ' || result, count(*) FROM outcome GROUP BY result ORDER BY result)
UNION ALL SELECT 'attempts failed', count(*) FROM attempt WHERE NOT stale
UNION ALL SELECT 'attempts stale', count(*) FROM attempt WHERE stale
UNION ALL SELECT 'deliveries due for over a minute', count(*) FROM delivery
          WHERE status IN ('PENDING', 'FAILED') AND next_retry_time < now() - interval '1 minute'`

// invariants are those of ARCHITECTURE.md that rows can show. Each statement returns the public ids of what
// breaks it.
var invariants = []struct{ text, statement string }{
	{"(a) a message has a delivery or an outcome", `
SELECT m.id::text FROM inbox_message AS m
WHERE NOT EXISTS (SELECT FROM delivery AS d WHERE d.id = m.id)
  AND NOT EXISTS (SELECT FROM outcome AS o WHERE o.id = m.id)`},
	{"(a) a delivery is live or ended, not both", `
SELECT d.id || '.' || d.handler_id FROM delivery AS d
JOIN outcome AS o ON (o.id, o.handler_id) = (d.id, d.handler_id) AND o.replay_no >= d.replay_no`},
	{"(a) a delivery ends once", `
SELECT id || '.' || coalesce(handler_id, 0) FROM outcome GROUP BY id, handler_id, replay_no HAVING count(*) > 1`},
	{"(b) PROCESSING if and only if claimed", `
SELECT id || '.' || handler_id FROM delivery
WHERE (status = 'PROCESSING') <> (claim_token IS NOT NULL) OR (status = 'PROCESSING') <> (claimed_at IS NOT NULL)
   OR (status = 'PROCESSING') <> (lease_until IS NOT NULL)`},
	{"(c) claim_seq never decreases", `
SELECT d.id || '.' || d.handler_id FROM delivery AS d
JOIN attempt AS a ON (a.id, a.handler_id) = (d.id, d.handler_id) AND NOT a.stale AND a.claim_seq > d.claim_seq
UNION
SELECT o.id || '.' || o.handler_id FROM outcome AS o
JOIN attempt AS a ON (a.id, a.handler_id) = (o.id, o.handler_id) AND NOT a.stale
                 AND a.replay_no <= o.replay_no AND a.claim_seq > o.claim_seq
UNION
SELECT o.id || '.' || o.handler_id FROM outcome AS o
JOIN outcome AS n ON (n.id, n.handler_id) = (o.id, o.handler_id)
                 AND n.replay_no > o.replay_no AND n.claim_seq < o.claim_seq`},
	{"(d) a claim ends once: it fails or succeeds", `
SELECT o.id || '.' || o.handler_id FROM outcome AS o
JOIN attempt AS a ON (a.id, a.handler_id) = (o.id, o.handler_id) AND NOT a.stale AND a.claim_token = o.claim_token
UNION
SELECT id || '.' || handler_id FROM attempt WHERE NOT stale
GROUP BY id, handler_id, claim_token HAVING count(*) > 1`},
	{"(e) retries stay within their limit", `
SELECT id || '.' || handler_id FROM delivery WHERE retry_count > max_retry_count`},
	{"(e) a retry has its attempt", `
SELECT d.id || '.' || d.handler_id FROM delivery AS d
WHERE d.retry_count > (SELECT count(*) FROM attempt AS a
                       WHERE (a.id, a.handler_id) = (d.id, d.handler_id) AND NOT a.stale)`},
	{"(f) a lane has at most one delivery under way", `
SELECT min(d.id) || '.' || d.handler_id FROM delivery AS d JOIN lane USING (handler_id, ordering_key)
WHERE d.status IN ('PENDING', 'FAILED', 'PROCESSING') GROUP BY d.handler_id, d.ordering_key HAVING count(*) > 1`},
	{"(g) a key has its message", `
SELECT k.id::text FROM inbox_key AS k
WHERE NOT EXISTS (SELECT FROM inbox_message AS m WHERE m.id = k.id)
  AND k.received_at >= (SELECT min(received_at) FROM inbox_message)`},
	{"(g) a message has the key that names it", `
SELECT m.id::text FROM inbox_message AS m
WHERE NOT EXISTS (SELECT FROM inbox_key AS k WHERE (k.source_id, k.message_id) = (m.source_id, m.message_id) AND k.id = m.id)
  AND m.received_at >= (SELECT min(received_at) FROM inbox_key)`},
	{"(h) unfinished work has its message and its key", `
SELECT d.id || '.' || d.handler_id FROM delivery AS d
WHERE NOT EXISTS (SELECT FROM inbox_message AS m JOIN inbox_key AS k USING (source_id, message_id)
                  WHERE m.id = d.id AND m.received_at = d.received_at)`},
	{"(i) a job counts what it moved", `
SELECT 'job ' || j.id FROM job AS j
LEFT JOIN (SELECT job_id, count(*) AS moved FROM job_delivery GROUP BY job_id) AS d ON d.job_id = j.id
WHERE j.moved <> coalesce(d.moved, 0)`},
}

// Check reads the whole database as of one moment, and returns what there is and which invariants are
// broken. It is an audit and takes its time; it locks nothing.
func (db *DB) Check(ctx context.Context) ([]CheckCount, []CheckViolation, error) {
	var (
		counts     []CheckCount
		violations []CheckViolation
	)
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err := pgx.BeginTxFunc(ctx, db.pool, options, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, readCounts)
		var err error
		if counts, err = pgx.CollectRows(rows, pgx.RowToStructByPos[CheckCount]); err != nil {
			return fmt.Errorf("count: %w", mapError(err))
		}
		for _, i := range invariants {
			v := CheckViolation{Invariant: i.text}
			err := tx.QueryRow(ctx, `SELECT count(*), coalesce((array_agg(id ORDER BY id))[1:5], '{}') FROM (`+i.statement+`) AS broken (id)`).
				Scan(&v.Rows, &v.Examples)
			if err != nil {
				return fmt.Errorf("check %q: %w", i.text, mapError(err))
			}
			if v.Rows > 0 {
				violations = append(violations, v)
			}
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	return counts, violations, nil
}
