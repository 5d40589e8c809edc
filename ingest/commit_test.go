package ingest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/inboxd/inboxd/inbox"
)

// fakeStore fails on cue. Ids are looked up in a set, as the unique key does.
type fakeStore struct {
	mu      sync.Mutex
	keys    map[string]int64
	started [][]string // batches, as they come in
	batches [][]string // as they are stored
	version int64      // what Insert accepts
	fail    func(batch []inbox.Message) error
	lost    bool          // store it, but report fail's error
	hold    chan struct{} // Insert waits until it is closed
}

func (f *fakeStore) Insert(ctx context.Context, version int64, batch []inbox.Message) ([]inbox.Stored, error) {
	var ids []string
	for _, m := range batch {
		ids = append(ids, m.MessageID)
	}
	f.mu.Lock()
	f.started = append(f.started, ids)
	f.mu.Unlock()
	if f.hold != nil {
		select {
		case <-f.hold:
		case <-ctx.Done():
			return nil, inbox.ErrUnavailable
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if version != f.version {
		return nil, inbox.ErrStaleSnapshot
	}
	var failure error
	if f.fail != nil {
		failure = f.fail(batch)
	}
	if failure != nil && !f.lost {
		return nil, failure
	}
	var stored []inbox.Stored
	for _, m := range batch {
		id, known := f.keys[m.MessageID]
		if !known {
			id = int64(len(f.keys) + 1)
			f.keys[m.MessageID] = id
		}
		stored = append(stored, inbox.Stored{ID: id, Duplicate: known})
	}
	f.batches = append(f.batches, ids)
	return stored, failure
}

type fakeSnapshots struct {
	mu      sync.Mutex
	current *inbox.Snapshot
	refresh func() *inbox.Snapshot
}

func (f *fakeSnapshots) Current() *inbox.Snapshot {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.current
}

func (f *fakeSnapshots) Refresh(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refresh == nil {
		return inbox.ErrUnavailable
	}
	f.current = f.refresh()
	return nil
}

func newTestCommitter(store Store, snapshots Snapshots) *committer {
	return newCommitter(&committer{
		store: store, snapshots: snapshots, metrics: newMetrics(prometheus.NewRegistry()), committed: func() {},
		intakeCount: 64, flushers: 1, batchRows: 8, batchBytes: 1 << 20, commitTimeout: time.Minute,
	})
}

func messagesOf(ids ...string) *submission {
	s := &submission{source: "shop"}
	for _, id := range ids {
		s.messages = append(s.messages, inbox.Message{MessageID: id})
		s.bytes += 100
	}
	return s
}

// answer is what one caller of submit got.
type answer struct {
	stored []inbox.Stored
	err    error
}

// submitAll submits each while the first commit is held, so that the rest make up the next batches, and
// returns the answers in order.
func submitAll(t *testing.T, c *committer, f *fakeStore, submissions ...*submission) []answer {
	t.Helper()
	answers := make([]answer, len(submissions))
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		f.hold = make(chan struct{}) // of this bubble
		var running, waiting sync.WaitGroup
		running.Go(func() { c.run(ctx) })
		for i, s := range submissions {
			waiting.Go(func() { answers[i].stored, answers[i].err = c.submit(context.Background(), s) })
			synctest.Wait() // it is queued: the order is ours
		}
		close(f.hold)
		waiting.Wait()
		cancel()
		running.Wait()
	})
	return answers
}

func TestOneBadRowFailsAlone(t *testing.T) {
	store := &fakeStore{keys: map[string]int64{}, fail: func(batch []inbox.Message) error {
		if slices.ContainsFunc(batch, func(m inbox.Message) bool { return m.MessageID == "bad" }) {
			return fmt.Errorf("store: %w", inbox.ErrRefused)
		}
		return nil
	}}
	c := newTestCommitter(store, &fakeSnapshots{current: &inbox.Snapshot{}})
	answers := submitAll(t, c, store, messagesOf("first"), messagesOf("a"), messagesOf("b"), messagesOf("bad"),
		messagesOf("c"), messagesOf("a"), messagesOf("d"))
	for i, a := range answers {
		if i == 3 {
			if !errors.Is(a.err, inbox.ErrRefused) {
				t.Errorf("the bad row got %v, want ErrRefused", a.err)
			}
			continue
		}
		if a.err != nil || len(a.stored) != 1 || a.stored[0].Duplicate != (i == 5) {
			t.Errorf("row %d got %+v, %v, want stored, and only row 5 as a duplicate", i, a.stored, a.err)
		}
	}
}

func TestItemsOfARequestTravelTogether(t *testing.T) {
	store := &fakeStore{keys: map[string]int64{}}
	c := newTestCommitter(store, &fakeSnapshots{current: &inbox.Snapshot{}})
	answers := submitAll(t, c, store, messagesOf("first"), messagesOf("a1", "a2", "a3", "a4", "a5"),
		messagesOf("b1", "b2", "b3", "b4"), messagesOf("c1"))
	for i, a := range answers {
		if a.err != nil {
			t.Errorf("request %d: %v", i, a.err)
		}
	}
	want := [][]string{{"first"}, {"a1", "a2", "a3", "a4", "a5"}, {"b1", "b2", "b3", "b4", "c1"}}
	if fmt.Sprint(store.batches) != fmt.Sprint(want) {
		t.Errorf("batches %v, want %v: a request is never split, a batch has at most 8 rows", store.batches, want)
	}
}

func TestNextBatchIsAsLargeAsTheOneUnderWay(t *testing.T) {
	for _, test := range []struct {
		name   string
		second []*submission
		want   [][]string
		rows   int
	}{
		{"as large", []*submission{messagesOf("b"), messagesOf("c1", "c2")}, [][]string{{"a1", "a2", "a3"}, {"b", "c1", "c2"}}, 6},
		{"small", []*submission{messagesOf("b"), messagesOf("c")}, [][]string{{"a1", "a2", "a3"}}, 5},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &fakeStore{keys: map[string]int64{}, hold: make(chan struct{})}
				c := newTestCommitter(store, &fakeSnapshots{current: &inbox.Snapshot{}})
				c.flushers = 2
				ctx, cancel := context.WithCancel(context.Background())
				var wg sync.WaitGroup
				wg.Go(func() { c.run(ctx) })
				for _, s := range append([]*submission{messagesOf("a1", "a2", "a3")}, test.second...) {
					wg.Go(func() {
						if _, err := c.submit(context.Background(), s); err != nil {
							t.Error(err)
						}
					})
					synctest.Wait()
				}
				if fmt.Sprint(store.started) != fmt.Sprint(test.want) {
					t.Errorf("under way at once: %v, want %v", store.started, test.want)
				}
				close(store.hold) // what still waits needs no other message to set out
				synctest.Wait()
				if len(store.keys) != test.rows {
					t.Errorf("stored %v, want all %d rows", store.batches, test.rows)
				}
				cancel()
				wg.Wait()
			})
		})
	}
}

func TestLargeBodiesTravelAlone(t *testing.T) {
	store := &fakeStore{keys: map[string]int64{}}
	c := newTestCommitter(store, &fakeSnapshots{current: &inbox.Snapshot{}})
	large := messagesOf("large")
	large.bytes = loneBytes + 1
	submitAll(t, c, store, messagesOf("first"), messagesOf("a"), large, messagesOf("b"), messagesOf("c"))
	want := [][]string{{"first"}, {"a"}, {"large"}, {"b", "c"}}
	if fmt.Sprint(store.batches) != fmt.Sprint(want) {
		t.Errorf("batches %v, want %v", store.batches, want)
	}
}

func TestStaleSnapshotIsRoutedAgain(t *testing.T) {
	before := &inbox.Snapshot{Version: 1}
	after := &inbox.Snapshot{Version: 2, Handlers: []*inbox.Handler{{ID: 7, Sources: []string{"shop"}, MessageTypes: []string{"*"}}}}
	snapshots := &fakeSnapshots{current: before, refresh: func() *inbox.Snapshot { return after }}
	store := &fakeStore{keys: map[string]int64{}, version: 2}
	c := newTestCommitter(store, snapshots)
	s := messagesOf("m")
	s.route(before)
	answers := submitAll(t, c, store, s)
	if a := answers[0]; a.err != nil || a.stored[0].Duplicate {
		t.Fatalf("got %+v, %v, want stored", a.stored, a.err)
	}
	if routes := s.messages[0].Routes; len(routes) != 1 || routes[0].HandlerID != 7 {
		t.Errorf("routes %+v, want handler 7", routes)
	}

	// The database can't be read for the new snapshot: a failure of ours, not a duplicate.
	snapshots.current, snapshots.refresh = before, nil
	if a := submitAll(t, newTestCommitter(store, snapshots), store, messagesOf("m"))[0]; !errors.Is(a.err, inbox.ErrUnavailable) {
		t.Errorf("got %+v, %v, want ErrUnavailable", a.stored, a.err)
	}
}

func TestFailedCommits(t *testing.T) {
	for _, test := range []struct {
		name string
		lost bool // the commit happened, its answer did not come
	}{{"not stored", false}, {"stored but reported lost", true}} {
		t.Run(test.name, func(t *testing.T) {
			store := &fakeStore{keys: map[string]int64{}, lost: test.lost, fail: func([]inbox.Message) error { return inbox.ErrUnavailable }}
			snapshots := &fakeSnapshots{current: &inbox.Snapshot{}}
			for _, a := range submitAll(t, newTestCommitter(store, snapshots), store, messagesOf("a"), messagesOf("b")) {
				if !errors.Is(a.err, inbox.ErrUnavailable) {
					t.Errorf("got %+v, %v, want ErrUnavailable", a.stored, a.err)
				}
			}
			// The provider sends it again.
			store.fail = nil
			again := submitAll(t, newTestCommitter(store, snapshots), store, messagesOf("a"))[0]
			if again.err != nil || again.stored[0].Duplicate != test.lost {
				t.Errorf("sent again: %+v, %v, want duplicate %t", again.stored, again.err, test.lost)
			}
		})
	}
}

func TestCallerIsNotHeldUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &fakeStore{keys: map[string]int64{}, hold: make(chan struct{})}
		c := newTestCommitter(store, &fakeSnapshots{current: &inbox.Snapshot{}})
		c.intakeCount = 2
		running, stop := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() { c.run(running) })

		// One is being committed, two wait, and there is no room for more.
		for _, id := range []string{"a", "b", "c"} {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
				defer cancel()
				started := time.Now()
				_, err := c.submit(ctx, messagesOf(id))
				if !errors.Is(err, inbox.ErrUnavailable) || time.Since(started) != 5*time.Second {
					t.Errorf("%s: %v after %s, want ErrUnavailable after its 5 s", id, err, time.Since(started))
				}
			})
			synctest.Wait()
		}
		if _, err := c.submit(context.Background(), messagesOf("d")); !errors.Is(err, errIntakeFull) {
			t.Errorf("got %v, want errIntakeFull at once", err)
		}
		time.Sleep(6 * time.Second) // of the bubble's clock
		close(store.hold)
		stop()
		wg.Wait()
		if len(store.keys) != 3 {
			t.Errorf("%d rows, want all 3 that were queued: their senders meet the key", len(store.keys))
		}
	})
}
