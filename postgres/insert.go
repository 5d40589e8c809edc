package postgres

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/inboxd/inboxd/inbox"
)

// insertMessages stores a batch as one transaction of one statement: keys, messages, and for each message
// its deliveries or the outcome UNROUTED.
//
// Every step hangs on the version being the one that the routes were computed with, and version_ok says so:
// no winner means "duplicate" only if it is true. The keys go in sorted, so that two batches that share keys
// wait for each other and can't deadlock. A row's number is drawn before its key is tried: a duplicate burns
// one.
//
// The arrays stand in sub-selects, which hide their length: PostgreSQL then sees that planning anew for each
// length gains nothing and keeps one plan. Planning took longer than storing a row. What only inbox_message
// needs is taken from its array where it is stored, and not carried, bodies and all, through the steps before.
// Its parameters are numbered in the order of insertParams.
const insertMessages = `
WITH version AS MATERIALIZED (
    SELECT version = $1 AS ok FROM snapshot_version
), incoming AS MATERIALIZED (
    SELECT nextval('inbox_message_id') AS id, i.*
    FROM unnest((SELECT $2::bigint[]), (SELECT $3::text[]), (SELECT $4::bytea[]),
                (SELECT $5::boolean[]))
         WITH ORDINALITY AS i (source_id, message_id, body_hash, routed, no)
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
    SELECT id, now(), source_id, message_id, ($6::text[])[no], ($7::timestamptz[])[no],
           ($8::text[])[no], ($9::text[])[no], ($10::text[])[no],
           ($11::bytea[])[no], ($12::bytea[])[no]
    FROM key JOIN incoming USING (id)
), routed AS (
    INSERT INTO delivery (id, handler_id, source_id, received_at, next_retry_time, max_retry_count, status)
    SELECT i.id, r.handler_id, i.source_id, now(), now(), r.max_retry_count, 'PENDING'
    FROM unnest((SELECT $13::bigint[]), (SELECT $14::bigint[]), (SELECT $15::integer[]))
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
	params := insertParams(version, batch)
	defer params.free()
	var stored []inbox.Stored
	err := db.persist(ctx, func(conn *pgx.Conn) error {
		var err error
		stored, err = insert(ctx, conn, params, len(batch))
		if err == nil {
			compareDuplicates(ctx, conn, batch, stored)
		}
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

// insertParams encodes the parameters of insertMessages.
func insertParams(version int64, batch []inbox.Message) *params {
	p := newParams()
	p.int8(version)
	p.end()
	each(p, pgtype.Int8OID, batch, func(m *inbox.Message) { p.element8(m.SourceID) })
	each(p, pgtype.TextOID, batch, func(m *inbox.Message) { p.text(m.MessageID) })
	each(p, pgtype.ByteaOID, batch, func(m *inbox.Message) { p.bytes(m.BodyHash[:]) })
	each(p, pgtype.BoolOID, batch, func(m *inbox.Message) { p.bool(len(m.Routes) > 0) })
	each(p, pgtype.TextOID, batch, func(m *inbox.Message) { p.text(m.MessageType) })
	each(p, pgtype.TimestamptzOID, batch, func(m *inbox.Message) { p.time(m.EventTime) })
	each(p, pgtype.TextOID, batch, func(m *inbox.Message) { p.textOrNull(m.BizKey) })
	each(p, pgtype.TextOID, batch, func(m *inbox.Message) { p.textOrNull(m.OrderingKey) })
	each(p, pgtype.TextOID, batch, func(m *inbox.Message) { p.text(m.ContentType) })
	each(p, pgtype.ByteaOID, batch, func(m *inbox.Message) { p.bytes(m.Headers) })
	each(p, pgtype.ByteaOID, batch, func(m *inbox.Message) { p.bytes(m.Body) })

	routes := 0
	for i := range batch {
		routes += len(batch[i].Routes)
	}
	eachRoute := func(oid uint32, element func(no int, r *inbox.Route)) {
		p.array(oid, routes)
		for i := range batch {
			for j := range batch[i].Routes {
				element(i+1, &batch[i].Routes[j]) // WITH ORDINALITY counts from 1
			}
		}
		p.end()
	}
	eachRoute(pgtype.Int8OID, func(no int, _ *inbox.Route) { p.element8(int64(no)) })
	eachRoute(pgtype.Int8OID, func(_ int, r *inbox.Route) { p.element8(r.HandlerID) })
	eachRoute(pgtype.Int4OID, func(_ int, r *inbox.Route) { p.element4(int32(r.MaxRetryCount)) })
	return p
}

// each encodes an array with one element for each message.
func each(p *params, oid uint32, batch []inbox.Message, element func(*inbox.Message)) {
	p.array(oid, len(batch))
	for i := range batch {
		element(&batch[i])
	}
	p.end()
}

var binary1 = []int16{pgx.BinaryFormatCode} // one code stands for all

// insert runs the statement as one implicit transaction, which Sync commits.
func insert(ctx context.Context, conn *pgx.Conn, p *params, n int) (stored []inbox.Stored, err error) {
	statement, err := conn.Prepare(ctx, "inboxd_insert", insertMessages) // sent once for each connection
	if err != nil {
		return nil, err
	}
	pipeline := conn.PgConn().StartPipeline(ctx)
	defer func() {
		if closeErr := pipeline.Close(); err == nil {
			err = closeErr
		}
	}()
	pipeline.SendQueryPrepared(statement.Name, p.values(), binary1, binary1)
	if err := pipeline.Sync(); err != nil {
		return nil, err
	}
	results, err := pipeline.GetResults()
	if err != nil {
		return nil, err
	}
	rows, ok := results.(*pgconn.ResultReader)
	if !ok {
		return nil, fmt.Errorf("insert answered %T", results)
	}
	stored = make([]inbox.Stored, n)
	versionOK := false
	for rows.NextRow() {
		row := rows.Values()
		versionOK = row[0][0] != 0
		if no := binary.BigEndian.Uint64(row[1]); no != 0 {
			stored[no-1] = inbox.Stored{ID: int64(binary.BigEndian.Uint64(row[2])), Duplicate: row[3][0] != 0}
		}
	}
	if _, err := rows.Close(); err != nil {
		return nil, err
	}
	// None of the rows counts before this: an error of the commit comes here.
	if _, err := pipeline.GetResults(); err != nil {
		return nil, err
	}
	if !versionOK {
		return nil, inbox.ErrStaleSnapshot
	}
	return stored, nil
}

const readKeys = `
SELECT d.no, k.id, k.body_hash <> d.body_hash
FROM unnest(@nos::bigint[], @source_ids::bigint[], @message_ids::text[], @body_hashes::bytea[])
     AS d (no, source_id, message_id, body_hash)
CROSS JOIN LATERAL (
    SELECT id, body_hash FROM inbox_key WHERE source_id = d.source_id AND message_id = d.message_id LIMIT 1
) AS k`

// compareDuplicates fills in what the duplicates are duplicates of. A statement of its own, since the
// insert's snapshot doesn't show a key that was committed while it waited. It is told to operators only, so
// it may fail: that the messages are duplicates is settled.
func compareDuplicates(ctx context.Context, conn *pgx.Conn, batch []inbox.Message, stored []inbox.Stored) {
	var (
		nos, sourceIDs []int64
		messageIDs     []string
		hashes         [][]byte
	)
	for i := range stored {
		if stored[i].Duplicate {
			nos = append(nos, int64(i))
			sourceIDs = append(sourceIDs, batch[i].SourceID)
			messageIDs = append(messageIDs, batch[i].MessageID)
			hashes = append(hashes, batch[i].BodyHash[:])
			stored[i].ID = 0
		}
	}
	if len(nos) == 0 {
		return
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
