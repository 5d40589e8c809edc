package postgres

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/inboxd/inboxd/inbox"
)

const (
	// maxRunningJobs bounds what the leader goes round, and maxScopedJobs what one token that is for some sources or
	// handlers only may have of it, so that it leaves some to others.
	maxRunningJobs = 100
	maxScopedJobs  = 10

	// A dry run counts so many deliveries, and takes so long, at most: somebody waits for it.
	planDeliveries = 100_000
	planTime       = 15 * time.Second

	// planGroups is how many groups a dry run tells apart; what is left over is one more.
	planGroups = 1000
)

const (
	// readJobStart reads where a job begins that is made now, and about where it will end: at the lowest message
	// that is parked, or that there is.
	readJobStart = `
SELECT now(), fence.last, message.last + 1,
       least(message.last + 1, greatest(@first, coalesce(CASE WHEN @parked THEN (
           SELECT min(p.id) FROM handler AS h
           CROSS JOIN LATERAL (SELECT id FROM delivery WHERE handler_id = h.id AND status = 'MANUAL_REQUIRED'
                               ORDER BY id LIMIT 1) AS p
           WHERE @handler::bigint = 0 OR h.id = @handler
       ) ELSE (SELECT min(id) FROM inbox_message) END, message.last + 1)))
FROM (SELECT CASE WHEN is_called THEN last_value ELSE 0 END AS last FROM claim_fence) AS fence,
     (SELECT CASE WHEN is_called THEN last_value ELSE 0 END AS last FROM inbox_message_id) AS message`

	countRunningJobs = `
SELECT count(*), count(*) FILTER (WHERE token_id = @token)
FROM (SELECT token_id FROM job WHERE status = 'running' LIMIT @limit) AS j`

	insertJob = `
INSERT INTO job (action, filter, to_handler, pace, actor, token_id, reason, note, created_at, fence, top, bottom, cursor)
VALUES (@action, @filter, @to_handler, @pace, @actor, @token, @reason, @note, @created_at, @fence, @top, @bottom, @top)
RETURNING id`
)

// startJob fills in where the job begins and what it will leave alone.
func (db *DB) startJob(ctx context.Context, conn execer, j *inbox.Job) error {
	var first int64
	if !j.Filter.From.IsZero() {
		var err error
		if first, err = db.firstAt(ctx, j.Filter.From.Add(-clockSkew)); err != nil {
			return err
		}
	}
	err := conn.QueryRow(ctx, readJobStart, planned, pgx.StrictNamedArgs{
		"first": first, "parked": j.Action != inbox.JobReplay, "handler": j.Filter.HandlerID,
	}).Scan(&j.CreatedAt, &j.Fence, &j.Top, &j.Bottom)
	j.Status, j.Cursor = inbox.JobRunning, j.Top
	return err
}

// CreateJob stores a job, which whoever leads runs, and fills in its number and where it begins.
func (db *DB) CreateJob(ctx context.Context, by inbox.Actor, j *inbox.Job) error {
	j.By = by
	// The filter as it is, so that a field that it gets one day is not forgotten here.
	filter, err := json.Marshal(j.Filter)
	if err != nil {
		return fmt.Errorf("create a job: %w", err)
	}
	err = pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		var running, own int
		args := pgx.StrictNamedArgs{"limit": maxRunningJobs, "token": by.TokenID}
		if err := tx.QueryRow(ctx, countRunningJobs, planned, args).Scan(&running, &own); err != nil {
			return err
		}
		if by.Within != nil && own >= maxScopedJobs {
			return &inbox.ConflictError{Detail: fmt.Sprintf("%d jobs of this token are running. Wait for one to end, or cancel one.", own)}
		}
		if running >= maxRunningJobs {
			return &inbox.ConflictError{Detail: fmt.Sprintf("%d jobs are running. Wait for one to end, or cancel one.", running)}
		}
		if err := db.startJob(ctx, tx, j); err != nil {
			return err
		}
		args = withActor(by, pgx.StrictNamedArgs{
			"action": string(j.Action), "filter": json.RawMessage(filter), "to_handler": orNull(j.ToHandler), "pace": j.Pace,
			"created_at": j.CreatedAt, "fence": j.Fence, "top": j.Top, "bottom": j.Bottom,
		})
		if err := tx.QueryRow(ctx, insertJob, planned, args).Scan(&j.ID); err != nil {
			return err
		}
		return audit(ctx, tx, by, change{
			action: inbox.JobCreate, object: strconv.FormatInt(j.ID, 10), source: j.Filter.SourceID, handler: cmp.Or(j.Filter.HandlerID, j.ToHandler),
			job: j.ID, after: auditJob(j),
		})
	})
	if err != nil && !errors.Is(err, inbox.ErrConflict) {
		err = mapError(err)
	}
	if err != nil {
		return fmt.Errorf("create a job: %w", err)
	}
	return nil
}

// auditedJob is what the audit shows of a job.
type auditedJob struct {
	Action    inbox.JobAction   `json:"action"`
	Filter    map[string]string `json:"filter"`
	ToHandler string            `json:"to_handler,omitempty"`
	Pace      int               `json:"pace,omitempty"`
}

func auditJob(j *inbox.Job) *auditedJob {
	f := j.Filter
	filter := map[string]string{
		"status": string(f.Status), "source": j.Source, "handler": j.Handler, "message_type": f.MessageType, "message_id": f.MessageID,
		"biz_key": f.BizKey, "ordering_key": f.OrderingKey, "error_class": string(f.ErrorClass),
	}
	if f.ResponseStatus != 0 {
		filter["response_status"] = strconv.Itoa(f.ResponseStatus)
	}
	for name, at := range map[string]time.Time{"from": f.From, "to": f.To} {
		if !at.IsZero() {
			filter[name] = at.UTC().Format(time.RFC3339Nano)
		}
	}
	maps.DeleteFunc(filter, func(_, value string) bool { return value == "" })
	return &auditedJob{Action: j.Action, Filter: filter, ToHandler: j.ToHandlerName, Pace: j.Pace}
}

// PlanJob counts what a job would move if it were created now. It changes nothing.
func (db *DB) PlanJob(ctx context.Context, j *inbox.Job) (inbox.JobPlan, error) {
	var plan inbox.JobPlan
	dry := *j
	if err := db.startJob(ctx, db.pool, &dry); err != nil {
		return plan, fmt.Errorf("plan a job: %w", mapError(err))
	}
	registered, err := db.Handlers(ctx)
	if err != nil {
		return plan, err
	}
	names := make(map[int64]string, len(registered))
	for _, h := range registered {
		names[h.ID] = h.Name
	}
	type group struct{ handler, messageType string }
	groups := make(map[group]int)
	started := time.Now()
	for {
		selection, err := db.selectForJob(ctx, &dry, messageStep, registered)
		if err != nil {
			return plan, fmt.Errorf("plan a job: %w", mapError(err))
		}
		for _, m := range selection.Messages {
			for _, item := range m.Items {
				groups[group{names[item.HandlerID], m.Type}]++
				plan.Deliveries++
			}
		}
		dry.Cursor = selection.Next
		if dry.Cursor == 0 {
			break
		}
		if plan.Deliveries >= planDeliveries || time.Since(started) > planTime {
			plan.AtLeast = true
			break
		}
	}
	for g, n := range groups {
		plan.Groups = append(plan.Groups, inbox.JobGroup{Handler: g.handler, MessageType: g.messageType, Deliveries: n})
	}
	slices.SortFunc(plan.Groups, func(a, b inbox.JobGroup) int {
		return cmp.Or(cmp.Compare(b.Deliveries, a.Deliveries), cmp.Compare(a.Handler, b.Handler), cmp.Compare(a.MessageType, b.MessageType))
	})
	if len(plan.Groups) > planGroups {
		plan.Groups = plan.Groups[:planGroups]
	}
	return plan, nil
}

const (
	jobColumns = `
SELECT id, action, filter, coalesce(to_handler, 0), pace, actor, coalesce(token_id, 0), reason, note, status, error, created_at,
       finished_at, selected, moved, skipped, fence, top, bottom, cursor, greatest(next_at - now(), '0'),
       coalesce((SELECT name FROM source AS s WHERE s.id = (j.filter ->> 'SourceID')::bigint), ''),
       coalesce((SELECT name FROM handler AS h WHERE h.id = (j.filter ->> 'HandlerID')::bigint), ''),
       coalesce((SELECT name FROM handler AS h WHERE h.id = j.to_handler), '')
FROM job AS j
`
	readJob  = jobColumns + `WHERE id = @id`
	listJobs = jobColumns + `WHERE id < @before AND (@status::text = '' OR status = @status) AND (@token::bigint = 0 OR token_id = @token)
ORDER BY id DESC LIMIT @limit`
	runningJobs = jobColumns + `WHERE status = 'running' ORDER BY id LIMIT @limit`
)

func scanJob(row pgx.CollectableRow) (inbox.Job, error) {
	var (
		j        inbox.Job
		filter   []byte
		finished *time.Time
	)
	err := row.Scan(&j.ID, &j.Action, &filter, &j.ToHandler, &j.Pace, &j.By.Name, &j.By.TokenID, &j.By.Reason, &j.By.Note, &j.Status,
		&j.Error, &j.CreatedAt, &finished, &j.Selected, &j.Moved, &j.Skipped, &j.Fence, &j.Top, &j.Bottom, &j.Cursor, &j.Wait,
		&j.Source, &j.Handler, &j.ToHandlerName)
	if err != nil {
		return j, err
	}
	j.FinishedAt = orZero(finished)
	// A filter with a field that this release doesn't know would choose more than was asked for.
	decoder := json.NewDecoder(bytes.NewReader(filter))
	decoder.DisallowUnknownFields()
	j.Broken = decoder.Decode(&j.Filter) != nil
	return j, nil
}

// Job returns a job, or ErrNotFound.
func (db *DB) Job(ctx context.Context, id int64) (inbox.Job, error) {
	rows, _ := db.pool.Query(ctx, readJob, planned, pgx.StrictNamedArgs{"id": id})
	j, err := pgx.CollectExactlyOneRow(rows, scanJob)
	if err != nil {
		return j, fmt.Errorf("read job %d: %w", id, mapError(err))
	}
	return j, nil
}

// ListJobs returns up to limit jobs, the latest first, that come after the number, 0 for the first page. status
// is that of the jobs, "" for any; token has created them, 0 for anybody.
func (db *DB) ListJobs(ctx context.Context, status inbox.JobStatus, token, after int64, limit int) ([]inbox.Job, error) {
	if after == 0 {
		after = math.MaxInt64
	}
	rows, _ := db.pool.Query(ctx, listJobs, planned, pgx.StrictNamedArgs{"before": after, "status": string(status), "token": token, "limit": limit})
	jobs, err := pgx.CollectRows(rows, scanJob)
	if err != nil {
		return nil, fmt.Errorf("list jobs: %w", mapError(err))
	}
	return jobs, nil
}

const cancelJob = `
UPDATE job SET status = 'cancelled', finished_at = now(), updated_at = now() WHERE id = @id AND status = 'running'
RETURNING moved`

// CancelJob ends a job. What it has moved stays moved; a page under way is finished first. It fails with
// ErrConflict if the job has ended.
func (db *DB) CancelJob(ctx context.Context, by inbox.Actor, id int64) (inbox.Job, error) {
	ended := false
	err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		var moved int64
		err := tx.QueryRow(ctx, cancelJob, planned, pgx.StrictNamedArgs{"id": id}).Scan(&moved)
		if errors.Is(err, pgx.ErrNoRows) {
			ended = true
			return nil
		}
		if err != nil {
			return err
		}
		return audit(ctx, tx, by, change{
			action: inbox.JobCancel, object: strconv.FormatInt(id, 10), job: id,
			before: map[string]any{"status": inbox.JobRunning}, after: map[string]any{"status": inbox.JobCancelled, "moved": moved},
		})
	})
	if err != nil {
		return inbox.Job{}, fmt.Errorf("cancel job %d: %w", id, mapError(err))
	}
	j, err := db.Job(ctx, id)
	if err == nil && ended {
		err = fmt.Errorf("cancel job %d: %w", id, &inbox.ConflictError{Detail: fmt.Sprintf("The job isn't running: it is %s.", j.Status)})
	}
	return j, err
}
