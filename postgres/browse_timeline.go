package postgres

import (
	"context"
	"fmt"
	"slices"

	"github.com/inboxd/inboxd/inbox"
)

// timelineEntries is how much of each ledger a timeline shows: the latest.
const timelineEntries = 1000

// Timeline tells what happened to a message, or fails with ErrNotFound.
func (db *DB) Timeline(ctx context.Context, id int64) (*inbox.Timeline, error) {
	m, err := messageState(ctx, db.pool, id)
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
