package postgres

import (
	"context"
	"sync/atomic"
	"time"
)

// hintChannel is where an instance tells the others that deliveries are ready.
const hintChannel = "inboxd_ready"

// hintInterval is the least time between two NOTIFYs of an instance: each takes a lock that all commits
// with a NOTIFY share.
const hintInterval = 100 * time.Millisecond

// Hints carries "deliveries are ready" from the instance that committed them to the others. It is only a
// hint: processors poll as well, so a lost one costs latency and nothing else.
type Hints struct {
	db      *DB
	pending atomic.Bool
	wake    chan struct{}
}

// Hints makes the carrier; its Send and Listen do nothing lasting until Run and Listen run.
func (db *DB) Hints() *Hints { return &Hints{db: db, wake: make(chan struct{}, 1)} }

// Send asks for a NOTIFY soon. It never waits, and is cheap enough to be called after every commit.
func (h *Hints) Send() {
	if h.pending.CompareAndSwap(false, true) {
		select {
		case h.wake <- struct{}{}:
		default:
		}
	}
}

// Run sends the hints, outside of anybody's transaction, until ctx is done.
func (h *Hints) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-h.wake:
		}
		h.pending.Store(false)
		timeout, cancel := context.WithTimeout(ctx, connectTimeout)
		_, _ = h.db.pool.Exec(timeout, "NOTIFY "+hintChannel) // the processors' poll stands in for a lost one
		cancel()
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(hintInterval):
		}
	}
}

// Listen calls heard for each hint until ctx is done. It connects again whenever its connection breaks.
func (h *Hints) Listen(ctx context.Context, heard func()) error {
	for ctx.Err() == nil {
		h.listen(ctx, heard)
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
	return nil
}

func (h *Hints) listen(ctx context.Context, heard func()) {
	conn, err := h.db.pool.Acquire(ctx)
	if err != nil {
		return
	}
	// Out of the pool: the session must not carry its LISTEN back there.
	listener := conn.Hijack()
	defer func() {
		timeout, cancel := context.WithTimeout(context.WithoutCancel(ctx), connectTimeout)
		defer cancel()
		_ = listener.Close(timeout)
	}()
	if _, err := listener.Exec(ctx, "LISTEN "+hintChannel); err != nil {
		return
	}
	for {
		if _, err := listener.WaitForNotification(ctx); err != nil {
			return
		}
		heard()
	}
}
