package postgres

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/inboxd/inboxd/inbox"
)

// RunningJobs returns the jobs that are to be run, the oldest first.
func (db *DB) RunningJobs(ctx context.Context) ([]inbox.Job, error) {
	rows, _ := db.pool.Query(ctx, runningJobs, planned, pgx.StrictNamedArgs{"limit": 2 * maxRunningJobs})
	jobs, err := pgx.CollectRows(rows, scanJob)
	if err != nil {
		return nil, fmt.Errorf("read running jobs: %w", mapError(err))
	}
	return jobs, nil
}

// SelectForJob returns what the job acts on next: about limit deliveries below its cursor.
func (db *DB) SelectForJob(ctx context.Context, j *inbox.Job, limit int) (inbox.JobSelection, error) {
	registered, err := db.Handlers(ctx)
	if err != nil {
		return inbox.JobSelection{}, err
	}
	selection, err := db.selectForJob(ctx, j, limit, registered)
	if err != nil {
		return selection, fmt.Errorf("select for job %d: %w", j.ID, mapError(err))
	}
	return selection, nil
}

func (db *DB) selectForJob(ctx context.Context, j *inbox.Job, limit int, registered []*inbox.Handler) (s inbox.JobSelection, err error) {
	n := 0
	s.Next, err = db.walk(ctx, j.Filter, j.Cursor, limit, func(m *inbox.MessageState) bool {
		if items := jobItems(j, m, registered); len(items) > 0 {
			s.Messages = append(s.Messages, inbox.JobMessage{
				ID: m.ID, SourceID: m.SourceID, ReceivedAt: m.ReceivedAt, Type: m.MessageType, Items: items,
			})
			n += len(items)
		}
		return n >= limit
	})
	return s, err
}

// jobItems returns what the job acts on of one message that its filter leads to. Handlers that were deleted get
// nothing more.
func jobItems(j *inbox.Job, m *inbox.MessageState, registered []*inbox.Handler) []inbox.JobItem {
	var items []inbox.JobItem
	if j.Filter.Status == inbox.Unrouted || j.Filter.Status == inbox.Duplicate {
		if !m.CameToNone || m.Status != j.Filter.Status {
			return nil
		}
		for _, h := range registered {
			if j.Filter.Within.Handler(h.ID) && (h.ID == j.ToHandler || j.ToHandler == 0 && h.Subscribes(m.Source, m.MessageType)) {
				items = append(items, inbox.JobItem{HandlerID: h.ID})
			}
		}
		return items
	}
	for _, d := range m.Deliveries {
		id := d.DeliveryID.Handler
		if !wantedDelivery(d, j.Filter) || !slices.ContainsFunc(registered, func(h *inbox.Handler) bool { return h.ID == id }) {
			continue
		}
		if j.Action == inbox.JobReplay && (j.ToHandler != 0 && j.ToHandler != id || d.FinishedAt.After(j.CreatedAt)) {
			continue
		}
		if j.Action != inbox.JobReplay && d.ClaimSeq > j.Fence {
			continue
		}
		items = append(items, inbox.JobItem{HandlerID: id, ClaimSeq: d.ClaimSeq, ReplayNo: d.ReplayNo})
	}
	return items
}

const (
	// lockJob makes pages of one job follow each other, and a cancellation wait for a page.
	lockJob = `SELECT FROM job WHERE id = @id AND status = 'running' AND cursor = @cursor FOR UPDATE`

	// chosenParked finds what was chosen and is still as it was.
	chosenParked = `
WITH chosen AS (
    SELECT * FROM unnest((SELECT @ids::bigint[]), (SELECT @handlers::bigint[]), (SELECT @seqs::bigint[])) AS c (id, handler_id, claim_seq)
), parked AS (
    SELECT d.* FROM chosen AS c JOIN delivery AS d ON (d.id, d.handler_id) = (c.id, c.handler_id)
    WHERE d.status = 'MANUAL_REQUIRED' AND d.claim_seq = c.claim_seq
      AND EXISTS (SELECT FROM handler AS h WHERE h.id = d.handler_id AND h.deleted_at IS NULL)
    ORDER BY d.id, d.handler_id
    FOR UPDATE OF d
)`

	linkMoved = `, linked AS (
    INSERT INTO job_delivery (id, handler_id, job_id, claim_seq, replay_no)
    SELECT id, handler_id, @job, claim_seq, replay_no FROM moved
)`

	// retryChosen is transition 14.
	retryChosen = chosenParked + `, moved AS (
    UPDATE delivery AS d SET status = 'PENDING', retry_count = 0, next_retry_time = now()
    FROM parked AS p WHERE (d.id, d.handler_id) = (p.id, p.handler_id)
    RETURNING d.*
)` + linkMoved + `, audited AS (` + auditParked + `)
SELECT count(*) FROM moved`

	// finishChosen is transition 15.
	finishChosen = chosenParked + `, moved AS (
    DELETE FROM delivery AS d USING parked AS p WHERE (d.id, d.handler_id) = (p.id, p.handler_id)
    RETURNING d.*
)` + linkMoved + `, audited AS (` + auditParked + `), ledger AS (
    INSERT INTO outcome (id, handler_id, source_id, received_at, finished_at, claim_seq, replay_no, attempts,
                         max_retry_count, result, ordering_key, last_error)
    SELECT id, handler_id, source_id, received_at, now(), claim_seq, replay_no, retry_count + 1, max_retry_count,
           @result, ordering_key, coalesce(nullif(@error::text, ''), last_error)
    FROM moved
)
SELECT count(*) FROM moved`

	// lockReplays is lockReplay of many, in the order of their numbers, so that no two wait for each other.
	lockReplays = `
SELECT count(pg_advisory_xact_lock(hashtextextended('inboxd.replay', id)))
FROM (SELECT id FROM unnest(@ids::bigint[]) AS id ORDER BY id) AS ordered`

	// replayChosen is transitions 17 and 18. What has run since it was chosen has another replay_no.
	replayChosen = `
WITH chosen AS (
    SELECT *
    FROM unnest((SELECT @ids::bigint[]), (SELECT @handlers::bigint[]), (SELECT @replays::integer[]), (SELECT @sources::bigint[]),
                (SELECT @received::timestamptz[])) AS c (id, handler_id, replay_no, source_id, received_at)
), ended AS (
    SELECT c.id, c.handler_id, c.source_id, c.received_at, o.claim_seq, h.max_retry_count, c.replay_no, o.ordering_key
    FROM chosen AS c
    JOIN handler AS h ON h.id = c.handler_id AND h.deleted_at IS NULL
    CROSS JOIN LATERAL (
        SELECT * FROM outcome AS o
        WHERE o.id = c.id AND (o.handler_id = c.handler_id OR o.handler_id IS NULL) AND o.finished_at >= @since
        ORDER BY o.handler_id NULLS LAST, o.replay_no DESC LIMIT 1
    ) AS o
    WHERE o.replay_no = c.replay_no AND o.result = @status AND o.finished_at <= @created_at
      AND NOT EXISTS (SELECT FROM delivery AS d WHERE (d.id, d.handler_id) = (c.id, c.handler_id))
), moved AS (
    INSERT INTO delivery (id, handler_id, source_id, received_at, next_retry_time, claim_seq, max_retry_count,
                          replay_no, status, ordering_key)
    SELECT id, handler_id, source_id, received_at, now(), claim_seq, max_retry_count, replay_no + 1, 'PENDING', ordering_key
    FROM ended
    RETURNING *
)` + linkMoved + `, audited AS (
    INSERT INTO audit (actor, token_id, action, object, source_id, handler_id, message, job_id, reason, note, before, after)
    SELECT @actor, @token, @action, m.id || '.' || m.handler_id, m.source_id, m.handler_id, m.id, @job, @reason, @note, NULL,
           jsonb_build_object('status', m.status, 'replay_no', m.replay_no)
    FROM moved AS m
)
SELECT count(*) FROM moved`

	// advanceJob also says when the pace allows the next page.
	advanceJob = `
UPDATE job
SET cursor = @cursor::bigint, selected = selected + @selected::bigint, moved = moved + @moved::bigint,
    skipped = skipped + @selected::bigint - @moved::bigint,
    next_at = now() + CASE WHEN pace > 0 THEN @moved::bigint * interval '1 s' / pace ELSE '0' END, updated_at = now(),
    error = coalesce(nullif(@error::text, ''), error),
    status = CASE WHEN @cursor::bigint = 0 THEN 'done' ELSE status END,
    finished_at = CASE WHEN @cursor::bigint = 0 THEN now() END
WHERE id = @id`
)

// MoveForJob acts on a page: its rows, what tells of them and the job's cursor are one transaction. It returns
// how many deliveries it moved; the others have moved on since they were selected. It fails with ErrConflict if
// the job has ended or is not where it was when it was read, and with ErrRefused if the database refuses a row;
// nothing has changed then.
func (db *DB) MoveForJob(ctx context.Context, j *inbox.Job, page inbox.JobPage) (moved int, err error) {
	selected := 0
	for _, m := range page.Messages {
		selected += len(m.Items)
	}
	gone := false
	err = db.persist(ctx, func(conn *pgx.Conn) error {
		moved = 0
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			tag, err := tx.Exec(ctx, lockJob, planned, pgx.StrictNamedArgs{"id": j.ID, "cursor": j.Cursor})
			if gone = err == nil && tag.RowsAffected() == 0; gone || err != nil {
				return err
			}
			if selected > 0 && page.Refused == "" {
				if moved, err = moveChosen(ctx, tx, j, page.Messages); err != nil {
					return err
				}
			}
			_, err = tx.Exec(ctx, advanceJob, planned, pgx.StrictNamedArgs{
				"id": j.ID, "cursor": page.Cursor, "selected": selected, "moved": moved, "error": validText(page.Refused),
			})
			return err
		})
	})
	if err == nil && gone {
		err = &inbox.ConflictError{Detail: "The job has ended, or another instance runs it."}
	}
	if err != nil {
		return 0, fmt.Errorf("move a page of job %d: %w", j.ID, err)
	}
	return moved, nil
}

// moveChosen moves what of the messages is still as it was chosen.
func moveChosen(ctx context.Context, tx pgx.Tx, j *inbox.Job, messages []inbox.JobMessage) (moved int, err error) {
	var (
		ids, handlers, seqs, sources []int64
		replays                      []int32
		received                     []time.Time
		locks                        []int64
	)
	since := messages[0].ReceivedAt
	for _, m := range messages {
		locks = append(locks, m.ID)
		if m.ReceivedAt.Before(since) {
			since = m.ReceivedAt
		}
		for _, item := range m.Items {
			ids, handlers, seqs = append(ids, m.ID), append(handlers, item.HandlerID), append(seqs, item.ClaimSeq)
			replays, sources, received = append(replays, int32(item.ReplayNo)), append(sources, m.SourceID), append(received, m.ReceivedAt)
		}
	}
	args := withActor(j.By, pgx.StrictNamedArgs{"ids": ids, "handlers": handlers, "job": j.ID})
	var statement string
	switch j.Action {
	case inbox.JobRetry:
		statement = retryChosen
		args["seqs"], args["action"], args["result"] = seqs, string(inbox.DeliveryRetry), string(inbox.Pending)
	case inbox.JobDone, inbox.JobDiscard:
		statement = finishChosen
		args["seqs"], args["action"], args["result"] = seqs, string(inbox.DeliveryDone), string(inbox.Done)
		if j.Action == inbox.JobDiscard {
			args["action"], args["result"] = string(inbox.DeliveryDiscard), string(inbox.Discarded)
		}
		args["error"] = storableText(j.By.Reason)
	default:
		if _, err := tx.Exec(ctx, lockReplays, planned, pgx.StrictNamedArgs{"ids": locks}); err != nil {
			return 0, err
		}
		statement = replayChosen
		args["action"], args["replays"], args["sources"], args["received"] = string(inbox.DeliveryReplay), replays, sources, received
		args["since"], args["status"], args["created_at"] = since.Add(-ledgerSlack), string(j.Filter.Status), j.CreatedAt
	}
	err = tx.QueryRow(ctx, statement, planned, args).Scan(&moved)
	return moved, err
}

const failJob = `
UPDATE job SET status = 'failed', error = @error, finished_at = now(), updated_at = now() WHERE id = @id AND status = 'running'`

// FailJob ends a job that can't go on.
func (db *DB) FailJob(ctx context.Context, id int64, why string) error {
	if _, err := db.pool.Exec(ctx, failJob, planned, pgx.StrictNamedArgs{"id": id, "error": validText(why)}); err != nil {
		return fmt.Errorf("fail job %d: %w", id, mapError(err))
	}
	return nil
}

// jobRooms counts what is due no further than it needs to: half of what an instance delivers at once. More
// would make what comes in meanwhile wait behind it.
const jobRooms = `
SELECT h.id, CASE WHEN h.paused THEN @most ELSE (h.concurrency + 1) / 2 - d.due END
FROM handler AS h
CROSS JOIN LATERAL (
    SELECT count(*)::integer AS due
    FROM (SELECT FROM delivery
          WHERE handler_id = h.id AND status IN ('PENDING', 'FAILED') AND next_retry_time <= now()
          LIMIT (h.concurrency + 1) / 2) AS due
) AS d
WHERE h.id = ANY (@handlers)`

// JobRooms returns how many deliveries may be added to each of the handlers; most at one that is paused.
func (db *DB) JobRooms(ctx context.Context, handlers []int64, most int) ([]inbox.JobRoom, error) {
	rows, _ := db.pool.Query(ctx, jobRooms, planned, pgx.StrictNamedArgs{"handlers": handlers, "most": most})
	rooms, err := pgx.CollectRows(rows, pgx.RowToStructByPos[inbox.JobRoom])
	if err != nil {
		return nil, fmt.Errorf("count what is due: %w", mapError(err))
	}
	return rooms, nil
}
