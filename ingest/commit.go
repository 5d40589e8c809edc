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
// is there, so batches grow by themselves as commits slow down, and a lone request waits for nothing.
type committer struct {
	store     Store
	snapshots Snapshots
	metrics   *metrics
	committed func()
	queue     chan *submission

	flushers      int
	batchRows     int
	batchBytes    int
	commitTimeout time.Duration
}

// loneBytes is the size from which a message's batch is its own: the others shouldn't wait for its transfer.
const loneBytes = 256 << 10

// submit waits until s is committed, refused or given up. After an ErrUnavailable nobody knows whether it
// was committed.
func (c *committer) submit(ctx context.Context, s *submission) ([]inbox.Stored, error) {
	s.done = make(chan struct{})
	select {
	case c.queue <- s:
	default:
		return nil, errIntakeFull
	}
	select {
	case <-s.done:
		return s.stored, s.err
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the commit: %w: %w", inbox.ErrUnavailable, context.Cause(ctx))
	}
}

// run flushes until ctx is done and the queue is empty. Whoever submits has to have stopped by then.
func (c *committer) run(ctx context.Context) {
	var wg sync.WaitGroup
	for range c.flushers {
		wg.Go(func() { c.flushLoop(ctx) })
	}
	wg.Wait()
}

func (c *committer) flushLoop(ctx context.Context) {
	// A commit that has begun is finished: its callers still wait for the answer.
	commitCtx := context.WithoutCancel(ctx)
	var next *submission // taken from the queue, but did not fit into the batch before
	for {
		first := next
		if first == nil {
			select {
			case first = <-c.queue:
			case <-ctx.Done():
				select {
				case first = <-c.queue:
				default:
					return
				}
			}
		}
		var batch []*submission
		batch, next = c.gather(first)
		c.flush(commitCtx, batch)
	}
}

// gather takes what queued while the last commit ran, within the limits of a batch. It returns the
// submission that no longer fitted, if any.
func (c *committer) gather(first *submission) (batch []*submission, next *submission) {
	batch = append(batch, first)
	rows, bytes := len(first.messages), first.bytes
	for rows < c.batchRows && bytes < c.batchBytes && first.bytes <= loneBytes {
		select {
		case s := <-c.queue:
			if rows+len(s.messages) > c.batchRows || bytes+s.bytes > c.batchBytes || s.bytes > loneBytes {
				return batch, s
			}
			batch = append(batch, s)
			rows += len(s.messages)
			bytes += s.bytes
		default:
			return batch, nil
		}
	}
	return batch, nil
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
