package postgres

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/inboxd/inboxd/inbox"
)

// timelineEntries is how much of each ledger a timeline shows: the latest.
const timelineEntries = 1000

const readHeaders = `SELECT headers FROM inbox_message WHERE id = @id AND received_at = @received_at`

// Timeline tells what happened to a message, or fails with ErrNotFound.
func (db *DB) Timeline(ctx context.Context, id int64) (*inbox.Timeline, error) {
	m, err := messageState(ctx, db.pool, id)
	if err != nil {
		return nil, fmt.Errorf("read message %d: %w", id, mapError(err))
	}
	err = db.pool.QueryRow(ctx, readHeaders, planned, pgx.StrictNamedArgs{"id": id, "received_at": m.ReceivedAt}).Scan(&m.Headers)
	if err != nil {
		return nil, fmt.Errorf("read message %d: %w", id, mapError(err))
	}
	// The time leaves out the partitions of days before the message.
	f := inbox.LedgerFilter{Message: id, From: m.ReceivedAt.Add(-ledgerSlack)}
	attempts, err := db.ListAttempts(ctx, f, inbox.LedgerPosition{}, timelineEntries)
	if err != nil {
		return nil, err
	}
	outcomes, err := db.ListOutcomes(ctx, f, inbox.LedgerPosition{}, timelineEntries)
	if err != nil {
		return nil, err
	}
	acts, err := db.ListAudit(ctx, inbox.AuditFilter{Message: id}, 0, timelineEntries)
	if err != nil {
		return nil, err
	}
	now, _, err := db.loadSnapshot(ctx, 0)
	if err != nil {
		return nil, fmt.Errorf("load sources and handlers: %w", mapError(err))
	}
	slices.Reverse(attempts.Items)
	slices.Reverse(outcomes.Items)
	slices.Reverse(acts.Items)
	return inbox.NewTimeline(m, attempts.Items, outcomes.Items, acts.Items, now), nil
}
