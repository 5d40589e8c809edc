package postgres_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/inboxd/inboxd/inbox"
)

// tailer follows a tail from position to position.
type tailer struct {
	*fixture
	filter   inbox.Filter
	position string
}

func (f *fixture) tail(t *testing.T, filter inbox.Filter, since time.Time) *tailer {
	t.Helper()
	position, err := f.TailFrom(t.Context(), since)
	if err != nil {
		t.Fatal(err)
	}
	return &tailer{f, filter, position}
}

func tell(e inbox.TailEvent) string {
	if m := e.Message; m != nil {
		return fmt.Sprintf("%s %s", m.MessageID, m.Status)
	}
	d := e.Delivery
	return fmt.Sprintf("%s %s %s %d/%d", d.MessageID, d.Handler, d.Status, d.RetryCount, d.MaxRetryCount)
}

// next tells what is new.
func (l *tailer) next(t *testing.T) (events []string) {
	t.Helper()
	for more := true; more; {
		page, err := l.Tail(t.Context(), l.filter, l.position)
		if err != nil {
			t.Fatalf("Tail = %v", err)
		}
		for _, e := range page.Events {
			events = append(events, tell(e))
		}
		l.position, more = page.Next, page.More
	}
	return events
}

func (l *tailer) want(t *testing.T, want ...string) {
	t.Helper()
	if got := l.next(t); !slices.Equal(got, want) {
		t.Errorf("the tail tells %q, want %q", got, want)
	}
}

// TestTail tells what happens to two messages, once, and what each filter leaves of it.
func TestTail(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.insert(t, f.message("before"))
	f.record(t, done(f.claim(t, 1)[0]))
	tails := map[string]*tailer{}
	for name, filter := range map[string]inbox.Filter{
		"all": {}, "parked": {Status: inbox.ManualRequired}, "type": {MessageType: "unpaid"}, "source": {SourceID: f.source + 1},
		"handler": {HandlerID: f.handler + 1}, "handler and status": {HandlerID: f.handler, Status: inbox.Done},
	} {
		tails[name] = f.tail(t, filter, time.Time{})
	}
	all := tails["all"]
	all.want(t)

	unrouted := f.message("unrouted")
	unrouted.Routes, unrouted.MessageType = nil, "unpaid"
	f.insert(t, f.message("first"), unrouted)
	all.want(t, "first PENDING", "unrouted UNROUTED")
	all.want(t)
	claim := f.claim(t, 1)[0]
	f.record(t, failed(claim))
	all.want(t, "first books FAILED 1/2")
	f.exec(t, `UPDATE delivery SET next_retry_time = now()`)
	claim = f.park(t)
	all.want(t, "first books MANUAL_REQUIRED 1/2")
	if _, err := f.Retry(t.Context(), operator, claim.DeliveryID, claim.ClaimSeq); err != nil {
		t.Fatal(err)
	}
	all.want(t)
	f.record(t, failed(f.claim(t, 1)[0]))
	f.exec(t, `UPDATE delivery SET next_retry_time = now()`)
	f.record(t, done(f.claim(t, 1)[0]))
	all.want(t, "first books FAILED 1/2", "first books DONE 1/2") // the failure's delivery has moved on

	// Those who look only now are told the end of it.
	tails["parked"].want(t)
	tails["type"].want(t, "unrouted UNROUTED")
	tails["source"].want(t)
	tails["handler"].want(t)
	tails["handler and status"].want(t, "first DONE", "first books DONE 1/2")

	since := f.tail(t, inbox.Filter{}, time.Now().Add(-time.Hour))
	if got := since.next(t); len(got) != 8 || got[0] != "before DONE" {
		t.Errorf("since an hour ago: %q", got)
	}
	since.want(t)
	m, err := f.Message(t.Context(), claim.Message)
	if err != nil {
		t.Fatal(err)
	}
	if got := f.tail(t, inbox.Filter{}, m.ReceivedAt).next(t); len(got) != 6 || got[0] != "first DONE" {
		t.Errorf("since the first: %q", got)
	}

	for _, position := range []string{"", "{}", all.position[1:], `{"v":{"s":"9:3:"}}`, `{"v":{"s":"999999999999:999999999999:"}}`, `{"v":{"s":"3:3:"},"d":{"u":{"s":"3:3:"},"k":3}}`} {
		if _, err := f.Tail(t.Context(), inbox.Filter{}, position); !errors.Is(err, inbox.ErrRefused) {
			t.Errorf("Tail(%q) = %v, want ErrRefused", position, err)
		}
	}
}

// TestTailAfterTheClockWasSetBack: marks that lie ahead, as they do then, hide nothing.
func TestTailAfterTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	tail := f.tail(t, inbox.Filter{}, time.Time{})
	tail.want(t)
	var position map[string]map[string]any
	if err := json.Unmarshal([]byte(tail.position), &position); err != nil {
		t.Fatal(err)
	}
	for _, mark := range []string{"m", "y"} {
		position["v"][mark].(map[string]any)["t"] = time.Now().Add(time.Hour)
	}
	text, err := json.Marshal(position)
	if err != nil {
		t.Fatal(err)
	}
	tail.position = string(text)
	f.insert(t, f.message("first"))
	f.record(t, done(f.claim(t, 1)[0]))
	tail.want(t, "first DONE", "first books DONE 0/2")
	f.insert(t, f.message("second"))
	f.record(t, done(f.claim(t, 1)[0]))
	tail.want(t, "second DONE", "second books DONE 0/2")
}

// TestTailPages: more than one look takes is told by page, and whoever is cut off between goes on there.
func TestTailPages(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	tail := f.tail(t, inbox.Filter{}, time.Time{})
	const n = 4500
	f.exec(t, `
INSERT INTO inbox_message (id, received_at, source_id, message_id, message_type, content_type, headers, body)
SELECT nextval('inbox_message_id'), now(), $1, 'm' || i, 'paid', '', '', '' FROM generate_series(1, $2) AS i`, f.source, n)
	f.exec(t, `
INSERT INTO outcome (id, handler_id, source_id, received_at, finished_at, result)
SELECT id, $1, source_id, received_at, now(), 'DONE' FROM inbox_message`, f.handler)
	pages, seen := 0, make(map[string]int)
	for more := true; more; pages++ {
		page, err := f.Tail(t.Context(), inbox.Filter{}, tail.position)
		if err != nil {
			t.Fatal(err)
		}
		if len(page.Events) > n {
			t.Fatalf("a page has %d events", len(page.Events))
		}
		tail.position, more = page.Next, page.More
		if pages%2 == 1 && len(page.Events) > 100 {
			page.Events = page.Events[:100]
			tail.position, more = page.Events[99].After, true
		}
		for _, e := range page.Events {
			seen[tell(e)]++
		}
	}
	for event, times := range seen {
		if times != 1 {
			t.Errorf("%s is told %d times", event, times)
		}
	}
	if len(seen) != 2*n || pages < 4 {
		t.Errorf("%d pages tell %d events, want %d", pages, len(seen), 2*n)
	}
}

// storeIn stores a message in a transaction of the caller's.
func (f *fixture) storeIn(ctx context.Context, tx pgx.Tx, id string) error {
	_, err := tx.Exec(ctx, `
INSERT INTO inbox_message (id, received_at, source_id, message_id, message_type, content_type, headers, body)
VALUES (nextval('inbox_message_id'), now(), $1, $2, 'paid', '', '', '')`, f.source, id)
	return err
}

// TestTailOfLateCommits: transactions that stay open, for short and for long, while others commit after them are told
// when they commit.
func TestTailOfLateCommits(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	begin := func(store string) pgx.Tx {
		t.Helper()
		conn, err := pgx.ConnectConfig(t.Context(), f.pool.Config().ConnConfig) // more than the pool has
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		tx, err := conn.Begin(t.Context())
		if err == nil && store != "" {
			err = f.storeIn(t.Context(), tx, store)
		}
		if err != nil {
			t.Fatal(err)
		}
		return tx
	}
	commit := func(tx pgx.Tx, store string) {
		t.Helper()
		var err error
		if store != "" {
			err = f.storeIn(t.Context(), tx, store)
		}
		if err := errors.Join(err, tx.Commit(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	early := begin("before the tail")
	tail := f.tail(t, inbox.Filter{}, time.Time{})
	short, long, idle, undone := begin("short"), begin("long"), begin(""), begin("undone")
	f.insert(t, f.message("first"))
	tail.want(t, "first PENDING")
	tail.want(t)
	commit(short, "")
	tail.want(t, "short DONE")

	// Marks are up to two seconds old. Let them pass by the transactions that are still open.
	for began := time.Now(); time.Since(began) < 3500*time.Millisecond; time.Sleep(100 * time.Millisecond) {
		tail.want(t)
	}
	f.insert(t, f.message("second"))
	tail.want(t, "second PENDING")
	commit(long, "")
	tail.want(t, "long DONE")
	f.insert(t, f.message("third"))
	commit(idle, "idle") // its time is old, its number is new
	commit(early, "")
	if err := undone.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	tail.want(t, "before the tail DONE", "third PENDING", "idle DONE")
	tail.want(t)
}

// TestTailUnderLoad: writers commit in any order, and readers are cut off after any event and continue after it. None
// loses anything, none sees anything twice.
func TestTailUnderLoad(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const writers, each, readers = 4, 60, 2 // no more writers than the pool has connections
	var tails []*tailer
	for range readers {
		tails = append(tails, f.tail(t, inbox.Filter{}, time.Time{}))
	}
	var writing, reading sync.WaitGroup
	var running atomic.Int32
	running.Store(writers)
	for w := range writers {
		writing.Go(func() {
			defer running.Add(-1)
			for n := range each {
				tx, err := f.pool.Begin(t.Context())
				if err == nil {
					err = f.storeIn(t.Context(), tx, fmt.Sprintf("%d-%d", w, n))
				}
				if err != nil {
					t.Error(err)
					return
				}
				time.Sleep(rand.N(10 * time.Millisecond)) // others draw numbers and commit meanwhile
				if err := tx.Commit(t.Context()); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for _, tail := range tails {
		reading.Go(func() {
			seen := make(map[string]int)
			for quiet := 0; quiet < 2; {
				ended := running.Load() == 0
				page, err := f.Tail(t.Context(), inbox.Filter{}, tail.position)
				if err != nil {
					t.Error(err)
					return
				}
				if n := len(page.Events); n > 0 && rand.N(2) == 0 {
					page.Events = page.Events[:1+rand.N(n)]
					page.Next = page.Events[len(page.Events)-1].After
				}
				tail.position = page.Next
				for _, e := range page.Events {
					seen[e.Message.MessageID]++
				}
				// The first that tells nothing may have been the rest of what was cut off.
				if quiet++; !ended || len(page.Events) > 0 || page.More {
					quiet = 0
				}
			}
			var lost []string
			for w := range writers {
				for n := range each {
					if id := fmt.Sprintf("%d-%d", w, n); seen[id] != 1 {
						lost = append(lost, fmt.Sprintf("%s %d times", id, seen[id]))
					}
				}
			}
			if len(lost) > 0 {
				t.Errorf("of %d messages a reader saw %s", writers*each, strings.Join(lost, ", "))
			}
		})
	}
	writing.Wait()
	reading.Wait()
}
