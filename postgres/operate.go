package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/inboxd/inboxd/inbox"
)

// retryParked is transition 14. The claim_seq says which run was looked at: a delivery that has failed
// again since is another case.
const retryParked = `
WITH parked AS (
    SELECT * FROM delivery AS d
    WHERE d.id = @id AND d.handler_id = @handler AND d.status = 'MANUAL_REQUIRED' AND d.claim_seq = @claim_seq
      AND EXISTS (SELECT FROM handler AS h WHERE h.id = d.handler_id AND h.deleted_at IS NULL)
    FOR UPDATE
), moved AS (
    UPDATE delivery AS d SET status = 'PENDING', retry_count = 0, next_retry_time = now()
    FROM parked AS p WHERE d.id = p.id AND d.handler_id = p.handler_id
    RETURNING d.id
)` + auditParked + `WHERE EXISTS (SELECT FROM moved)`

// auditParked writes down what became of the row of parked.
const auditParked = `
INSERT INTO audit (actor, token_id, action, object, source_id, handler_id, message, job_id, reason, note, before, after)
SELECT @actor, @token, @action, p.id || '.' || p.handler_id, p.source_id, p.handler_id, p.id, @job::bigint, @reason, @note,
       jsonb_build_object('status', p.status, 'claim_seq', p.claim_seq, 'retry_count', p.retry_count, 'last_error', p.last_error),
       jsonb_build_object('status', @result::text)
FROM parked AS p
`

// Retry makes a parked delivery PENDING again, with all its retries. The last error stays until another
// attempt has one. It fails with ErrConflict unless the delivery is parked and its claim_seq the given one.
func (db *DB) Retry(ctx context.Context, by inbox.Actor, id inbox.DeliveryID, claimSeq int64) (inbox.DeliveryState, error) {
	args := pgx.StrictNamedArgs{
		"id": id.Message, "handler": id.Handler, "claim_seq": claimSeq, "result": string(inbox.Pending),
		"action": string(inbox.DeliveryRetry), "job": nil,
	}
	return db.act(ctx, "retry", id, claimSeq, retryParked, withActor(by, args))
}

// finishParked is transition 15: the row goes, its outcome comes, as one statement.
const finishParked = `
WITH parked AS (
    DELETE FROM delivery
    WHERE id = @id AND handler_id = @handler AND status = 'MANUAL_REQUIRED' AND claim_seq = @claim_seq
    RETURNING *
), audited AS (` + auditParked + `)
INSERT INTO outcome (id, handler_id, source_id, received_at, finished_at, claim_seq, replay_no, attempts,
                     max_retry_count, result, ordering_key, last_error)
SELECT id, handler_id, source_id, received_at, now(), claim_seq, replay_no, retry_count + 1, max_retry_count,
       @result, ordering_key, coalesce(nullif(@error::text, ''), last_error)
FROM parked`

// Finish ends a parked delivery as DONE or DISCARDED. The actor's reason takes the place of the outcome's
// last error; the attempts keep theirs. It fails with ErrConflict as Retry does.
func (db *DB) Finish(ctx context.Context, by inbox.Actor, id inbox.DeliveryID, claimSeq int64, result inbox.Status) (inbox.DeliveryState, error) {
	action := inbox.DeliveryDiscard
	if result == inbox.Done {
		action = inbox.DeliveryDone
	}
	args := pgx.StrictNamedArgs{
		"id": id.Message, "handler": id.Handler, "claim_seq": claimSeq, "result": string(result), "action": string(action),
		"error": storableText(by.Reason), "job": nil,
	}
	return db.act(ctx, "finish", id, claimSeq, finishParked, withActor(by, args))
}

// act runs a statement on one parked delivery and returns what the delivery is then, or says why the
// statement changed nothing.
func (db *DB) act(ctx context.Context, what string, id inbox.DeliveryID, claimSeq int64, statement string, args pgx.StrictNamedArgs) (inbox.DeliveryState, error) {
	var changed int64
	err := db.persist(ctx, func(conn *pgx.Conn) error {
		tag, err := conn.Exec(ctx, statement, planned, args)
		changed = tag.RowsAffected()
		return err
	})
	if err != nil {
		return inbox.DeliveryState{}, fmt.Errorf("%s delivery %s: %w", what, id, err)
	}
	d, err := db.delivery(ctx, id)
	if err != nil {
		return d, fmt.Errorf("%s delivery %s: %w", what, id, mapError(err))
	}
	if changed == 0 {
		return d, fmt.Errorf("%s delivery %s: %w", what, id, whyNot(d, claimSeq))
	}
	return d, nil
}

func whyNot(d inbox.DeliveryState, claimSeq int64) error {
	switch {
	case d.Status != inbox.ManualRequired:
		return &inbox.ConflictError{Detail: fmt.Sprintf("The delivery isn't parked: it is %s.", d.Status)}
	case d.ClaimSeq != claimSeq:
		return &inbox.ConflictError{Detail: fmt.Sprintf("The delivery has moved on: its claim_seq is %d, not %d.", d.ClaimSeq, claimSeq)}
	}
	return &inbox.ConflictError{Detail: "The delivery's handler was deleted."}
}

const (
	// lockReplay lets one replay of a message run at a time. Two at once could each read the same latest
	// outcome, the second after the first's delivery has ended again, and give two runs one number.
	lockReplay = `SELECT pg_advisory_xact_lock(hashtextextended('inboxd.replay', @id))`

	// insertReplay is transitions 17 and 18. A handler's new run continues its latest outcome, or the one
	// that says that the message reached no handler.
	insertReplay = `
WITH ended AS (
    SELECT DISTINCT ON (h.id) h.id AS handler_id, h.max_retry_count, o.replay_no, o.claim_seq, o.ordering_key
    FROM handler AS h
    JOIN outcome AS o ON o.id = @id AND (o.handler_id = h.id OR o.handler_id IS NULL) AND o.finished_at >= @since
    WHERE h.id = ANY (@handlers) AND h.deleted_at IS NULL
    ORDER BY h.id, o.handler_id NULLS LAST, o.replay_no DESC
), replayed AS (
    INSERT INTO delivery (id, handler_id, source_id, received_at, next_retry_time, claim_seq, max_retry_count,
                          replay_no, status, ordering_key)
    SELECT @id, handler_id, @source, @received_at, now(), claim_seq, max_retry_count, replay_no + 1, 'PENDING',
           ordering_key
    FROM ended AS e
    WHERE NOT EXISTS (SELECT FROM delivery AS d WHERE d.id = @id AND d.handler_id = e.handler_id)
    RETURNING *
)
INSERT INTO audit (actor, token_id, action, object, source_id, handler_id, message, reason, note, before, after)
SELECT @actor, @token, @action, r.id || '.' || r.handler_id, r.source_id, r.handler_id, r.id, @reason, @note, NULL,
       jsonb_build_object('status', r.status, 'replay_no', r.replay_no)
FROM replayed AS r`
)

// Replay delivers a message again: to the given handlers, else to those of its finished deliveries, else,
// if it has reached no handler, to those that subscribe to it now; of those, to the ones within the actor's
// reach. It returns the new deliveries. It fails with ErrNotFound if there is no such message, and with
// ErrConflict, having changed nothing, if a given handler's delivery isn't finished or there is nothing to
// replay.
func (db *DB) Replay(ctx context.Context, by inbox.Actor, message int64, handlers []int64) ([]inbox.DeliveryState, error) {
	return db.replay(ctx, by, message, handlers, nil)
}

// errDryRun takes back what a dry run did.
var errDryRun = errors.New("dry run")

// PlanReplay returns what Replay would now, and changes nothing.
func (db *DB) PlanReplay(ctx context.Context, by inbox.Actor, message int64, handlers []int64) ([]inbox.DeliveryState, error) {
	return db.replay(ctx, by, message, handlers, errDryRun)
}

// replay ends its transaction with the error.
func (db *DB) replay(ctx context.Context, by inbox.Actor, message int64, handlers []int64, end error) (made []inbox.DeliveryState, err error) {
	err = pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockReplay, pgx.StrictNamedArgs{"id": message}); err != nil {
			return err
		}
		m, err := messageState(ctx, tx, message)
		if err != nil {
			return err
		}
		rows, _ := tx.Query(ctx, readHandlers)
		registered, err := pgx.CollectRows(rows, db.scanHandler)
		if err != nil {
			return err
		}
		registered = slices.DeleteFunc(registered, func(h *inbox.Handler) bool { return !by.Within.Handler(h.ID) })
		if handlers, err = replayTargets(m, registered, handlers); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, insertReplay, planned, withActor(by, pgx.StrictNamedArgs{
			"id": message, "handlers": handlers, "source": m.SourceID, "received_at": m.ReceivedAt,
			"since": m.ReceivedAt.Add(-ledgerSlack), "action": string(inbox.DeliveryReplay),
		}))
		if err == nil && int(tag.RowsAffected()) != len(handlers) {
			return &inbox.ConflictError{Detail: "The message's deliveries or handlers changed meanwhile."}
		}
		if err != nil {
			return err
		}
		if m, err = messageState(ctx, tx, message); err != nil {
			return err
		}
		made = slices.DeleteFunc(m.Deliveries, func(d inbox.DeliveryState) bool { return !slices.Contains(handlers, d.DeliveryID.Handler) })
		return end
	})
	switch {
	case err == nil, errors.Is(err, errDryRun):
		return made, nil
	case errors.Is(err, inbox.ErrConflict):
		return nil, fmt.Errorf("replay message %d: %w", message, err)
	}
	return nil, fmt.Errorf("replay message %d: %w", message, mapError(err))
}

// replayTargets returns the handlers that a replay goes to, or says why it can't go to one that was named.
func replayTargets(m *inbox.MessageState, registered []*inbox.Handler, named []int64) ([]int64, error) {
	deliveries := make(map[int64]inbox.DeliveryState, len(m.Deliveries))
	for _, d := range m.Deliveries {
		deliveries[d.DeliveryID.Handler] = d
	}
	var targets []int64
	if len(named) > 0 {
		for _, id := range named {
			d, ok := deliveries[id]
			switch {
			case ok && !d.Status.Finished():
				return nil, &inbox.ConflictError{Detail: fmt.Sprintf("The delivery to %s isn't finished: it is %s.", d.Handler, d.Status)}
			case !ok && !m.CameToNone:
				return nil, &inbox.ConflictError{Detail: "The message was never on its way to one of these handlers."}
			}
			if !slices.Contains(targets, id) {
				targets = append(targets, id)
			}
		}
		return targets, nil
	}
	unrouted := m.CameToNone && len(deliveries) == 0
	for _, h := range registered {
		d, ok := deliveries[h.ID]
		if ok && d.Status.Finished() || unrouted && h.Subscribes(m.Source, m.MessageType) {
			targets = append(targets, h.ID)
		}
	}
	switch {
	case len(targets) > 0:
		return targets, nil
	case unrouted:
		return nil, &inbox.ConflictError{Detail: "No handler subscribes to the message. Name the handlers that are to get it."}
	}
	return nil, &inbox.ConflictError{Detail: "No delivery of the message is finished, at a handler that still exists."}
}
