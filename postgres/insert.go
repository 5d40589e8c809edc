package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/inboxd/inboxd/inbox"
)

// insertMessages stores a batch as one transaction of one statement: keys, messages, and for each message
// its deliveries or the outcome UNROUTED.
//
// Every step hangs on the version being the one that the routes were computed with, and version_ok says so:
// no winner means "duplicate" only if it is true. The keys go in sorted, so that two batches that share keys
// wait for each other and can't deadlock. A row's number is drawn before its key is tried: a duplicate burns
// one.
const insertMessages = `
WITH version AS MATERIALIZED (
    SELECT version = @version AS ok FROM snapshot_version
), incoming AS MATERIALIZED (
    SELECT nextval('inbox_message_id') AS id, i.*
    FROM unnest(@source_ids::bigint[], @message_ids::text[], @message_types::text[], @event_times::timestamptz[],
                @biz_keys::text[], @ordering_keys::text[], @content_types::text[], @headers::bytea[],
                @bodies::bytea[], @body_hashes::bytea[], @routed::boolean[])
         WITH ORDINALITY AS i (source_id, message_id, message_type, event_time, biz_key, ordering_key,
                               content_type, headers, body, body_hash, routed, no)
    WHERE (SELECT ok FROM version)
), key AS (
    INSERT INTO inbox_key (source_id, message_id, id, received_at, body_hash)
    SELECT source_id, message_id, id, now(), body_hash FROM incoming
    ORDER BY source_id, message_id, no
    ON CONFLICT DO NOTHING
    RETURNING id
), message AS (
    INSERT INTO inbox_message (id, received_at, source_id, message_id, message_type, event_time, biz_key,
                               ordering_key, content_type, headers, body)
    SELECT id, now(), source_id, message_id, message_type, event_time, biz_key, ordering_key, content_type,
           headers, body
    FROM key JOIN incoming USING (id)
), routed AS (
    INSERT INTO delivery (id, handler_id, source_id, received_at, next_retry_time, max_retry_count, status)
    SELECT i.id, r.handler_id, i.source_id, now(), now(), r.max_retry_count, 'PENDING'
    FROM unnest(@route_nos::bigint[], @route_handlers::bigint[], @route_retries::integer[])
         AS r (no, handler_id, max_retry_count)
    JOIN incoming AS i USING (no) JOIN key USING (id)
), unrouted AS (
    INSERT INTO outcome (id, source_id, received_at, finished_at, result)
    SELECT id, source_id, now(), now(), 'UNROUTED' FROM key JOIN incoming USING (id) WHERE NOT routed
)
SELECT version.ok, coalesce(i.no, 0), coalesce(i.id, 0), key.id IS NULL
FROM version LEFT JOIN incoming AS i ON true LEFT JOIN key USING (id)`

// Insert commits a batch and reports, message by message, stored or duplicate. version is that of the
// snapshot the routes were computed with.
//
// It fails as a whole, with nothing written: ErrStaleSnapshot if sources or handlers have changed since,
// ErrRefused if the database refuses one of the rows for its content. ErrUnavailable leaves open whether
// the batch was committed; whoever sends it again meets its keys.
func (db *DB) Insert(ctx context.Context, version int64, batch []inbox.Message) ([]inbox.Stored, error) {
	args := insertArgs(version, batch)
	var stored []inbox.Stored
	err := db.persist(ctx, func(conn *pgx.Conn) error {
		var err error
		stored, err = insert(ctx, conn, args, len(batch))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("store %d messages: %w", len(batch), err)
	}
	return stored, nil
}

// persist runs a statement that can be repeated if it failed as a whole. A missing partition is made and
// the statement run again; a deadlock or timeout gets one more try. A connection whose error is
// none of the row's or the moment's is dropped: after a failover it may still lead to the old,
// read-only server.
func (db *DB) persist(ctx context.Context, run func(*pgx.Conn) error) error {
	conn, err := db.pool.Acquire(ctx)
	if err != nil {
		return mapError(err)
	}
	defer conn.Release()
	retried, made := false, false
	for {
		err := run(conn.Conn())
		if err == nil || errors.Is(err, inbox.ErrStaleSnapshot) {
			return err
		}
		switch diagnose(err) {
		case faultNoPartition:
			if made {
				return fmt.Errorf("%w: SQLSTATE 23514, no partition", inbox.ErrUnavailable)
			}
			made = true
			db.missedPartitions.Add(1)
			if err := makePartitions(ctx, conn.Conn(), 0); err != nil {
				return mapError(err)
			}
			continue
		case faultTransient:
			if !retried {
				retried = true
				select {
				case <-time.After(time.Duration(rand.Int64N(int64(20 * time.Millisecond)))):
					continue
				case <-ctx.Done():
				}
			}
		case faultUnavailable:
			_ = conn.Conn().Close(ctx)
		}
		return mapError(err)
	}
}

func insertArgs(version int64, batch []inbox.Message) pgx.StrictNamedArgs {
	n := len(batch)
	var (
		sourceIDs, routeNos, routeHandlers     = make([]int64, n), make([]int64, 0, n), make([]int64, 0, n)
		messageIDs, messageTypes, contentTypes = make([]string, n), make([]string, n), make([]string, n)
		eventTimes                             = make([]*time.Time, n)
		bizKeys, orderingKeys                  = make([]*string, n), make([]*string, n)
		headers, bodies, hashes                = make([][]byte, n), make([][]byte, n), make([][]byte, n)
		routed                                 = make([]bool, n)
		routeRetries                           = make([]int32, 0, n)
	)
	for i := range batch {
		m := &batch[i]
		sourceIDs[i], messageIDs[i], messageTypes[i], contentTypes[i] = m.SourceID, m.MessageID, m.MessageType, m.ContentType
		if !m.EventTime.IsZero() {
			eventTimes[i] = &m.EventTime
		}
		if m.BizKey != "" {
			bizKeys[i] = &m.BizKey
		}
		if m.OrderingKey != "" {
			orderingKeys[i] = &m.OrderingKey
		}
		headers[i], bodies[i], hashes[i] = notNil(m.Headers), notNil(m.Body), m.BodyHash[:]
		routed[i] = len(m.Routes) > 0
		for _, r := range m.Routes {
			routeNos = append(routeNos, int64(i+1)) // WITH ORDINALITY counts from 1
			routeHandlers = append(routeHandlers, r.HandlerID)
			routeRetries = append(routeRetries, int32(r.MaxRetryCount))
		}
	}
	return pgx.StrictNamedArgs{
		"version": version, "source_ids": sourceIDs, "message_ids": messageIDs, "message_types": messageTypes,
		"event_times": eventTimes, "biz_keys": bizKeys, "ordering_keys": orderingKeys,
		"content_types": contentTypes, "headers": headers, "bodies": bodies, "body_hashes": hashes,
		"routed": routed, "route_nos": routeNos, "route_handlers": routeHandlers, "route_retries": routeRetries,
	}
}

// notNil keeps an empty body from becoming NULL.
func notNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

func insert(ctx context.Context, conn *pgx.Conn, args pgx.StrictNamedArgs, n int) ([]inbox.Stored, error) {
	rows, err := conn.Query(ctx, insertMessages, args)
	if err != nil {
		return nil, err
	}
	stored := make([]inbox.Stored, n)
	var (
		versionOK bool
		no, id    int64
		duplicate bool
		some      bool
	)
	_, err = pgx.ForEachRow(rows, []any{&versionOK, &no, &id, &duplicate}, func() error {
		if no == 0 {
			return nil
		}
		some = some || duplicate
		stored[no-1] = inbox.Stored{ID: id, Duplicate: duplicate}
		return nil
	})
	// An error at COMMIT comes after the rows: none of them counts before this check.
	if err != nil {
		return nil, err
	}
	if !versionOK {
		return nil, inbox.ErrStaleSnapshot
	}
	if some {
		compareDuplicates(ctx, conn, args, stored)
	}
	return stored, nil
}

const readKeys = `
SELECT d.no, k.id, k.body_hash <> d.body_hash
FROM unnest(@nos::bigint[], @source_ids::bigint[], @message_ids::text[], @body_hashes::bytea[])
     AS d (no, source_id, message_id, body_hash)
JOIN inbox_key AS k USING (source_id, message_id)`

// compareDuplicates fills in what the duplicates are duplicates of. A statement of its own, since the
// insert's snapshot doesn't show a key that was committed while it waited. It is told to operators only, so
// it may fail: that the messages are duplicates is settled.
func compareDuplicates(ctx context.Context, conn *pgx.Conn, args pgx.StrictNamedArgs, stored []inbox.Stored) {
	var (
		nos, sourceIDs []int64
		messageIDs     []string
		hashes         [][]byte
	)
	for i := range stored {
		if stored[i].Duplicate {
			nos = append(nos, int64(i))
			sourceIDs = append(sourceIDs, args["source_ids"].([]int64)[i])
			messageIDs = append(messageIDs, args["message_ids"].([]string)[i])
			hashes = append(hashes, args["body_hashes"].([][]byte)[i])
			stored[i].ID = 0
		}
	}
	rows, _ := conn.Query(ctx, readKeys, planned, pgx.StrictNamedArgs{
		"nos": nos, "source_ids": sourceIDs, "message_ids": messageIDs, "body_hashes": hashes,
	})
	var (
		no, id    int64
		different bool
	)
	_, _ = pgx.ForEachRow(rows, []any{&no, &id, &different}, func() error {
		stored[no].ID, stored[no].DifferentBody = id, different
		return nil
	})
}

// makePartition makes one day of one table; the function takes the advisory lock under which two writers
// that miss the same day make it once.
const makePartition = `
SELECT count(*) FILTER (WHERE make_partition(t, (now() AT TIME ZONE 'UTC')::date + d))
FROM unnest(ARRAY ['inbox_message', 'outcome', 'attempt']) AS t, generate_series(0, @ahead::integer) AS d`

func makePartitions(ctx context.Context, conn *pgx.Conn, ahead int) error {
	_, err := conn.Exec(ctx, makePartition, pgx.StrictNamedArgs{"ahead": ahead})
	return err
}

// execer is what a connection, a pool and a transaction have in common.
type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}
