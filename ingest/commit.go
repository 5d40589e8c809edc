package ingest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/inboxd/inboxd/inbox"
)

// Store is what ingest needs of the database.
type Store interface {
	// Insert commits the batch as one transaction and reports, message by message, stored or duplicate.
	// It fails as a whole: with inbox.ErrStaleSnapshot or inbox.ErrRefused nothing was written; any other
	// error leaves open whether it was.
	Insert(ctx context.Context, version int64, batch []inbox.Message) ([]inbox.Stored, error)
}

// Snapshots gives the current sources and handlers.
type Snapshots interface {
	Current() *inbox.Snapshot
	Refresh(ctx context.Context) error
}

// errIntakeFull: more requests wait for a commit than the intake holds.
var errIntakeFull = fmt.Errorf("the intake is full: %w", inbox.ErrUnavailable)

// submission is the messages of one HTTP request on their way to a commit. They travel together: all are
// committed, or none.
type submission struct {
	source   string
	messages []inbox.Message
	version  int64 // of the snapshot that the messages were routed with
	bytes    int

	// The flusher sets these and closes done; nobody touches them before.
	stored []inbox.Stored
	err    error
	done   chan struct{}
}

// committer gathers submissions into group commits. There is no timer: a flusher that is free takes what
// waits, so batches grow by themselves as commits slow down, and a lone request waits for nothing.
//
// While a batch is on its way to the database, the next one sets out only when it is as large. So the
// database executes one batch while it commits another, and neither crumbles: without that rule the second
// flusher would take every caller that comes back alone.
type committer struct {
	store     Store
	snapshots Snapshots
	metrics   *metrics
	committed func()

	intakeCount   int
	flushers      int
	batchRows     int
	batchBytes    int
	commitTimeout time.Duration

	mu       sync.Mutex
	changed  *sync.Cond    // of what is below
	waiting  []*submission // in the order of their arrival
	rows     int           // of waiting
	inFlight int           // rows on their way to the database
	closed   bool          // nobody submits any more
}

func newCommitter(c *committer) *committer {
	c.changed = sync.NewCond(&c.mu)
	return c
}

// loneBytes is the size from which a message's batch is its own: the others shouldn't wait for its transfer.
const loneBytes = 256 << 10

// submit waits until s is committed, refused or given up. After an ErrUnavailable nobody knows whether it
// was committed.
func (c *committer) submit(ctx context.Context, s *submission) ([]inbox.Stored, error) {
	s.done = make(chan struct{})
	if !c.enqueue(s) {
		return nil, errIntakeFull
	}
	select {
	case <-s.done:
		return s.stored, s.err
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the commit: %w: %w", inbox.ErrUnavailable, context.Cause(ctx))
	}
}

func (c *committer) enqueue(s *submission) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waiting) >= c.intakeCount {
		return false
	}
	c.waiting = append(c.waiting, s)
	c.rows += len(s.messages)
	if c.worthIt() {
		c.changed.Signal()
	}
	return true
}

// run flushes until ctx is done and nothing waits. Whoever submits has to have stopped by then.
func (c *committer) run(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.closed = true
		c.changed.Broadcast()
	})
	defer stop()
	// A commit that has begun is finished: its callers still wait for the answer.
	commitCtx := context.WithoutCancel(ctx)
	var wg sync.WaitGroup
	for range c.flushers {
		wg.Go(func() {
			for batch, rows := c.next(); rows > 0; batch, rows = c.next() {
				c.flush(commitCtx, batch)
				c.landed(rows)
			}
		})
	}
	wg.Wait()
}

// worthIt says whether a batch should set out now.
func (c *committer) worthIt() bool {
	return c.rows > 0 && c.rows >= min(c.inFlight, c.batchRows)
}

// next waits for a batch and takes it; one of no rows is the end.
func (c *committer) next() (batch []*submission, rows int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.worthIt() && !(c.closed && c.rows == 0) {
		c.changed.Wait()
	}
	n, bytes := 0, 0
	for _, s := range c.waiting {
		if n > 0 && (rows+len(s.messages) > c.batchRows || bytes+s.bytes > c.batchBytes ||
			c.waiting[0].bytes > loneBytes || s.bytes > loneBytes) {
			break
		}
		n++
		rows += len(s.messages)
		bytes += s.bytes
	}
	batch, c.waiting = c.waiting[:n:n], c.waiting[n:]
	c.rows -= rows
	c.inFlight += rows
	if c.worthIt() {
		c.changed.Signal()
	}
	return batch, rows
}

func (c *committer) landed(rows int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inFlight -= rows
	if c.worthIt() || c.closed {
		c.changed.Broadcast()
	}
}

// maxReroutes bounds how often a batch follows changes of sources and handlers. A change takes
// milliseconds and a batch meets more than one only if somebody changes them without pause.
const maxReroutes = 10

// flush commits a batch and answers each of its submissions. Where the database refuses a row, the batch is
// halved until the row stands alone: the others commit.
func (c *committer) flush(ctx context.Context, batch []*submission) {
	stored, err := c.insert(ctx, batch)
	if errors.Is(err, inbox.ErrRefused) && len(batch) > 1 {
		c.flush(ctx, batch[:len(batch)/2])
		c.flush(ctx, batch[len(batch)/2:])
		return
	}
	fresh := false
	for _, s := range batch {
		if err != nil {
			s.err = err
		} else {
			s.stored, stored = stored[:len(s.messages):len(s.messages)], stored[len(s.messages):]
		}
		for i := range s.stored {
			fresh = fresh || !s.stored[i].Duplicate
		}
	}
	// The processors learn of the work before the callers are woken: on a busy machine that is the
	// difference between a handler that is called now and one that is called after the next batch.
	if fresh {
		c.committed()
	}
	for _, s := range batch {
		close(s.done)
	}
}

func (c *committer) insert(ctx context.Context, batch []*submission) ([]inbox.Stored, error) {
	ctx, cancel := context.WithTimeout(ctx, c.commitTimeout)
	defer cancel()
	var rows []inbox.Message
	for range maxReroutes {
		snapshot := c.snapshots.Current()
		rows = rows[:0]
		for _, s := range batch {
			if s.version != snapshot.Version {
				s.route(snapshot)
			}
			rows = append(rows, s.messages...)
		}
		c.metrics.batchSize.Observe(float64(len(rows)))
		stored, err := c.store.Insert(ctx, snapshot.Version, rows)
		if !errors.Is(err, inbox.ErrStaleSnapshot) {
			return stored, err
		}
		if err := c.snapshots.Refresh(ctx); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("route a batch: %w: sources and handlers change faster than they can be read", inbox.ErrUnavailable)
}

// route computes the handlers that get each message.
func (s *submission) route(snapshot *inbox.Snapshot) {
	s.version = snapshot.Version
	for i := range s.messages {
		s.messages[i].Routes = snapshot.Route(s.source, s.messages[i].MessageType)
	}
}
