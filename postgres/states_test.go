package postgres_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/inboxd/inboxd/inbox"
	"github.com/inboxd/inboxd/internal/seal"
	"github.com/inboxd/inboxd/postgres"
	"github.com/inboxd/inboxd/postgres/pgtest"
)

// fixture is a database with one source and one handler that takes everything.
type fixture struct {
	*postgres.DB
	pool    *pgxpool.Pool
	source  int64
	handler int64
	version int64
}

const (
	owner = "test"
	lease = time.Minute
)

// newKeys returns a ring with one random key.
func newKeys(t *testing.T) *seal.Keyring {
	t.Helper()
	entry, err := seal.NewKey("test")
	if err != nil {
		t.Fatal(err)
	}
	keys, err := seal.Parse(entry)
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	url := pgtest.New(t).URL
	db, err := postgres.Open(t.Context(), url, 8, postgres.WithSecrets(postgres.Secrets{Keys: newKeys(t)}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	f := &fixture{DB: db, pool: pool}
	f.source = f.value(t, `INSERT INTO source (name, provider) VALUES ('shop', 'none') RETURNING id`)
	f.handler = f.addHandler(t, "books")
	f.readVersion(t)
	return f
}

func (f *fixture) addHandler(t testing.TB, name string) int64 {
	t.Helper()
	return f.value(t, `
INSERT INTO handler (name, url, sources, message_types, secrets, concurrency, timeout, max_retry_count, backoff_base, backoff_cap)
VALUES ('`+name+`', 'http://127.0.0.1:1', '{*}', '{*}', '{whsec_c2VjcmV0}', 10, '5 s', 2, '1 s', '1 h') RETURNING id`)
}

func (f *fixture) readVersion(t testing.TB) {
	t.Helper()
	f.version = f.value(t, `SELECT version FROM snapshot_version`)
}

func (f *fixture) value(t testing.TB, sql string) int64 {
	t.Helper()
	var n int64
	if err := f.pool.QueryRow(t.Context(), sql).Scan(&n); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}

func (f *fixture) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := f.pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func (f *fixture) message(id string) inbox.Message {
	body := []byte("body of " + id)
	sum := sha256.Sum256(body)
	return inbox.Message{
		SourceID: f.source, MessageID: id, MessageType: "paid", Body: body, BodyHash: [16]byte(sum[:16]),
		Routes: []inbox.Route{{HandlerID: f.handler, MaxRetryCount: 2}},
	}
}

func (f *fixture) insert(t *testing.T, messages ...inbox.Message) []inbox.Stored {
	t.Helper()
	stored, err := f.Insert(t.Context(), f.version, messages)
	if err != nil {
		t.Fatalf("Insert = %v", err)
	}
	return stored
}

func (f *fixture) claim(t *testing.T, free int) []inbox.Claim {
	t.Helper()
	claims, _, err := f.Claim(t.Context(), owner, newToken(), []inbox.Want{{HandlerID: f.handler, Free: free, Lease: lease}})
	if err != nil {
		t.Fatalf("Claim = %v", err)
	}
	return claims
}

func (f *fixture) record(t *testing.T, results ...inbox.Result) []inbox.Recorded {
	t.Helper()
	recorded, err := f.Record(t.Context(), owner, results)
	if err != nil {
		t.Fatalf("Record = %v", err)
	}
	return recorded
}

var tokens byte

func newToken() inbox.Token {
	tokens++
	return inbox.Token{6: 0x40, 8: 0x80, 15: tokens}
}

// row is what a test expects of a delivery; attempts counts its rows of attempt.
type row struct {
	status     string
	retryCount int
	replayNo   int
	attempts   int
	stale      int
	due        string // "now", "never", or a delay from now
	class      string // of the last attempt
}

// read returns the delivery as it stands. due is "now" within a second either way, else rounded to seconds.
func (f *fixture) read(t *testing.T, id inbox.DeliveryID) row {
	t.Helper()
	var (
		r   row
		due *float64
	)
	err := f.pool.QueryRow(t.Context(), `
SELECT s.status, s.retry_count, s.replay_no,
       CASE WHEN isfinite(s.next_retry_time) THEN extract(epoch FROM s.next_retry_time - now()) END,
       (SELECT count(*) FROM attempt WHERE (id, handler_id) = (s.id, s.handler_id) AND NOT stale),
       (SELECT count(*) FROM attempt WHERE (id, handler_id) = (s.id, s.handler_id) AND stale),
       coalesce((SELECT class FROM attempt WHERE (id, handler_id) = (s.id, s.handler_id)
                 ORDER BY finished_at DESC, claim_seq DESC LIMIT 1), '')
FROM delivery_status AS s WHERE s.id = @id AND s.handler_id = @handler`,
		pgx.StrictNamedArgs{"id": id.Message, "handler": id.Handler}).
		Scan(&r.status, &r.retryCount, &r.replayNo, &due, &r.attempts, &r.stale, &r.class)
	if err != nil {
		t.Fatalf("read %s: %v", id, err)
	}
	switch {
	case due == nil:
		r.due = "never"
	case *due < 2:
		r.due = "now"
	default:
		r.due = (time.Duration(*due+0.999) * time.Second).String()
	}
	return r
}

func (f *fixture) checkClean(t *testing.T) {
	t.Helper()
	_, violations, err := f.Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range violations {
		t.Errorf("invariant broken: %s: %d rows, %v", v.Invariant, v.Rows, v.Examples)
	}
}

func done(c inbox.Claim) inbox.Result {
	return inbox.Result{Claim: c, Verdict: inbox.VerdictDone, ResponseStatus: 200, Duration: time.Millisecond}
}

func failed(c inbox.Claim) inbox.Result {
	return inbox.Result{
		Claim: c, Verdict: inbox.VerdictRetry, Class: inbox.ClassStatus, Delay: time.Minute, ResponseStatus: 500,
		ResponseBody: []byte("oops\x00"), Error: "answered 500", Duration: time.Millisecond,
	}
}

func permanent(c inbox.Claim) inbox.Result {
	r := failed(c)
	r.Verdict = inbox.VerdictPermanent
	return r
}

func release(c inbox.Claim) inbox.Result {
	return inbox.Result{Claim: c, Verdict: inbox.VerdictRelease}
}

// setRetries makes the delivery look as if so many of its retries had been used.
func (f *fixture) setRetries(t *testing.T, c inbox.Claim, n int) inbox.Claim {
	t.Helper()
	f.exec(t, `UPDATE delivery SET retry_count = $1 WHERE id = $2 AND handler_id = $3`, n, c.Message, c.Handler)
	for i := range n {
		f.exec(t, `INSERT INTO attempt (id, handler_id, source_id, finished_at, claim_seq, claim_token, replay_no, retry_count, class)
VALUES ($1, $2, $3, now() - interval '1 minute', 0, gen_random_uuid(), 0, $4, 'status')`, c.Message, c.Handler, c.SourceID, i)
	}
	c.RetryCount = n
	return c
}

// expire ends the lease of a claim.
func (f *fixture) expire(t *testing.T, c inbox.Claim) {
	t.Helper()
	f.exec(t, `UPDATE delivery SET lease_until = now() - interval '1 s' WHERE id = $1 AND handler_id = $2`, c.Message, c.Handler)
}

func (f *fixture) reclaim(t *testing.T) []inbox.Recorded {
	t.Helper()
	reclaimed, err := f.Reclaim(t.Context(), owner, 100, func(int64, int) time.Duration { return time.Minute })
	if err != nil {
		t.Fatalf("Reclaim = %v", err)
	}
	return reclaimed
}

// TestTransitions walks the table of states in ARCHITECTURE.md, numbers and all: each event from each status
// that it can meet, with its guards. Each row starts from a delivery that was just claimed.
func TestTransitions(t *testing.T) {
	for _, test := range []struct {
		name string
		do   func(t *testing.T, f *fixture, c inbox.Claim)
		want row
	}{
		{
			"6 PENDING is claimed", func(*testing.T, *fixture, inbox.Claim) {},
			row{status: "PROCESSING", due: "now"},
		},
		{"6 FAILED is claimed when it is due", func(t *testing.T, f *fixture, c inbox.Claim) {
			f.record(t, failed(c))
			if again := f.claim(t, 1); len(again) != 0 {
				t.Errorf("a delivery due in a minute was claimed")
			}
			f.exec(t, `UPDATE delivery SET next_retry_time = now()`)
			again := f.claim(t, 1)
			if len(again) != 1 || again[0].ClaimSeq <= c.ClaimSeq || again[0].Token == c.Token || again[0].RetryCount != 1 {
				t.Errorf("claimed again as %+v, want a new token, a higher fence and retry 1", again)
			}
		}, row{status: "PROCESSING", retryCount: 1, attempts: 1, due: "now", class: "status"}},
		{"6 PROCESSING can't be claimed", func(t *testing.T, f *fixture, _ inbox.Claim) {
			if again := f.claim(t, 1); len(again) != 0 {
				t.Errorf("claimed what is claimed")
			}
		}, row{status: "PROCESSING", due: "now"}},
		{"7 success ends it", func(t *testing.T, f *fixture, c inbox.Claim) {
			if got := f.record(t, done(c))[0]; got.Status != inbox.Done || got.Stale {
				t.Errorf("Record = %+v, want DONE", got)
			}
		}, row{status: "DONE", due: "never"}},
		{"8 a failure with retries left", func(t *testing.T, f *fixture, c inbox.Claim) {
			if got := f.record(t, failed(c))[0]; got.Status != inbox.Failed {
				t.Errorf("Record = %+v, want FAILED", got)
			}
		}, row{status: "FAILED", retryCount: 1, attempts: 1, due: "1m0s", class: "status"}},
		{"8 the last retry may still be used", func(t *testing.T, f *fixture, c inbox.Claim) {
			f.record(t, failed(f.setRetries(t, c, 1)))
		}, row{status: "FAILED", retryCount: 2, attempts: 2, due: "1m0s", class: "status"}},
		{"9 a failure with none left", func(t *testing.T, f *fixture, c inbox.Claim) {
			if got := f.record(t, failed(f.setRetries(t, c, 2)))[0]; got.Status != inbox.ManualRequired {
				t.Errorf("Record = %+v, want MANUAL_REQUIRED", got)
			}
		}, row{status: "MANUAL_REQUIRED", retryCount: 2, attempts: 3, due: "never", class: "status"}},
		{"9 a permanent failure", func(t *testing.T, f *fixture, c inbox.Claim) {
			f.record(t, permanent(c))
		}, row{status: "MANUAL_REQUIRED", attempts: 1, due: "never", class: "status"}},
		{"9 parked is not claimed", func(t *testing.T, f *fixture, c inbox.Claim) {
			f.record(t, permanent(c))
			if again := f.claim(t, 1); len(again) != 0 {
				t.Errorf("claimed what is parked")
			}
		}, row{status: "MANUAL_REQUIRED", attempts: 1, due: "never", class: "status"}},
		{"10 released before its first attempt", func(t *testing.T, f *fixture, c inbox.Claim) {
			f.record(t, release(c))
		}, row{status: "PENDING", due: "now"}},
		{"10 released before a retry", func(t *testing.T, f *fixture, c inbox.Claim) {
			f.record(t, release(f.setRetries(t, c, 1)))
		}, row{status: "FAILED", retryCount: 1, attempts: 1, due: "now", class: "status"}},
		{"11 reclaimed with retries left", func(t *testing.T, f *fixture, c inbox.Claim) {
			f.expire(t, c)
			if got := f.reclaim(t); len(got) != 1 || got[0].Status != inbox.Failed {
				t.Errorf("Reclaim = %+v, want one FAILED", got)
			}
		}, row{status: "FAILED", retryCount: 1, attempts: 1, due: "1m0s", class: "lease_expired"}},
		{"11 a lease that holds is not reclaimed", func(t *testing.T, f *fixture, _ inbox.Claim) {
			if got := f.reclaim(t); len(got) != 0 {
				t.Errorf("Reclaim = %+v, want none", got)
			}
		}, row{status: "PROCESSING", due: "now"}},
		{"12 reclaimed with none left", func(t *testing.T, f *fixture, c inbox.Claim) {
			f.setRetries(t, c, 2)
			f.expire(t, c)
			f.reclaim(t)
		}, row{status: "MANUAL_REQUIRED", retryCount: 2, attempts: 3, due: "never", class: "lease_expired"}},
		{"13 success after a reclaim changes nothing", func(t *testing.T, f *fixture, c inbox.Claim) {
			f.expire(t, c)
			f.reclaim(t)
			if got := f.record(t, done(c))[0]; !got.Stale {
				t.Errorf("Record = %+v, want stale", got)
			}
		}, row{status: "FAILED", retryCount: 1, attempts: 1, stale: 1, due: "1m0s"}},
		{"13 a failure after another claim changes nothing", func(t *testing.T, f *fixture, c inbox.Claim) {
			f.expire(t, c)
			f.reclaim(t)
			f.exec(t, `UPDATE delivery SET next_retry_time = now()`)
			f.claim(t, 1)
			if got := f.record(t, failed(c))[0]; !got.Stale {
				t.Errorf("Record = %+v, want stale", got)
			}
		}, row{status: "PROCESSING", retryCount: 1, attempts: 1, stale: 1, due: "now", class: "status"}},
		{"13 success after the other's success changes nothing", func(t *testing.T, f *fixture, c inbox.Claim) {
			f.expire(t, c)
			f.reclaim(t)
			f.exec(t, `UPDATE delivery SET next_retry_time = now()`)
			f.record(t, done(f.claim(t, 1)[0]))
			if got := f.record(t, done(c))[0]; !got.Stale {
				t.Errorf("Record = %+v, want stale", got)
			}
		}, row{status: "DONE", retryCount: 1, attempts: 1, stale: 1, due: "never"}},
		{"13 a stale write-back is told once", func(t *testing.T, f *fixture, c inbox.Claim) {
			f.expire(t, c)
			f.reclaim(t)
			f.record(t, done(c))
			if got := f.record(t, done(c))[0]; !got.Stale {
				t.Errorf("Record = %+v, want stale", got)
			}
		}, row{status: "FAILED", retryCount: 1, attempts: 1, stale: 1, due: "1m0s"}},
		{"13 success written twice is a success", func(t *testing.T, f *fixture, c inbox.Claim) {
			f.record(t, done(c))
			if got := f.record(t, done(c))[0]; got.Stale || got.Status != inbox.Done {
				t.Errorf("Record = %+v, want DONE", got)
			}
		}, row{status: "DONE", due: "never"}},
		{"13 a failure written twice counts once", func(t *testing.T, f *fixture, c inbox.Claim) {
			f.record(t, failed(c))
			if got := f.record(t, failed(c))[0]; got.Stale {
				t.Errorf("Record = %+v, want FAILED", got)
			}
		}, row{status: "FAILED", retryCount: 1, attempts: 1, due: "1m0s", class: "status"}},
		{"13 a late release changes nothing", func(t *testing.T, f *fixture, c inbox.Claim) {
			f.expire(t, c)
			f.reclaim(t)
			f.record(t, release(c))
		}, row{status: "FAILED", retryCount: 1, attempts: 1, due: "1m0s", class: "lease_expired"}},
		{"19 a deleted handler's delivery is discarded", func(t *testing.T, f *fixture, c inbox.Claim) {
			f.record(t, failed(c))
			f.discardOrphans(t, 1)
		}, row{status: "DISCARDED", attempts: 1, due: "never", class: "status"}},
		{"19 a parked one too", func(t *testing.T, f *fixture, c inbox.Claim) {
			f.record(t, permanent(c))
			f.discardOrphans(t, 1)
		}, row{status: "DISCARDED", attempts: 1, due: "never", class: "status"}},
		{"19 one under way is left to its processor", func(t *testing.T, f *fixture, c inbox.Claim) {
			f.discardOrphans(t, 0)
			f.record(t, done(c))
		}, row{status: "DONE", due: "never"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.insert(t, f.message("m1"))
			claims := f.claim(t, 1)
			if len(claims) != 1 {
				t.Fatalf("claimed %d deliveries, want 1", len(claims))
			}
			test.do(t, f, claims[0])
			got := f.read(t, claims[0].DeliveryID)
			if test.want.class == "" {
				got.class = ""
			}
			if got != test.want {
				t.Errorf("got  %+v\nwant %+v", got, test.want)
			}
			f.checkClean(t)
		})
	}
}

func (f *fixture) discardOrphans(t *testing.T, want int) {
	t.Helper()
	f.exec(t, `UPDATE handler SET deleted_at = now()`)
	n, err := f.DiscardOrphans(t.Context(), 100)
	if err != nil || n != want {
		t.Errorf("DiscardOrphans = %d, %v, want %d", n, err, want)
	}
}

func TestIngestTransitions(t *testing.T) {
	t.Parallel()
	f := newFixture(t)

	// 1: the key is won.
	first := f.insert(t, f.message("m1"))[0]
	if first.Duplicate || first.ID == 0 {
		t.Fatalf("Insert = %+v, want a new row", first)
	}
	if got := f.read(t, inbox.DeliveryID{Message: first.ID, Handler: f.handler}); got != (row{status: "PENDING", due: "now"}) {
		t.Errorf("got %+v, want PENDING and due", got)
	}

	// 3: it is there already, with the same bytes and with others.
	if again := f.insert(t, f.message("m1"))[0]; again != (inbox.Stored{ID: first.ID, Duplicate: true}) {
		t.Errorf("Insert = %+v, want a duplicate of %d", again, first.ID)
	}
	other := f.message("m1")
	other.BodyHash = [16]byte{1}
	if again := f.insert(t, other)[0]; again != (inbox.Stored{ID: first.ID, Duplicate: true, DifferentBody: true}) {
		t.Errorf("Insert = %+v, want a duplicate of %d with another body", again, first.ID)
	}

	// 5: nobody subscribes.
	lonely := f.message("m2")
	lonely.Routes = nil
	stored := f.insert(t, lonely)[0]
	var status string
	err := f.pool.QueryRow(t.Context(), `SELECT status FROM delivery_status WHERE id = $1`, stored.ID).Scan(&status)
	if err != nil || status != "UNROUTED" {
		t.Errorf("status = %q, %v, want UNROUTED", status, err)
	}
	f.checkClean(t)
}

func TestInsertBatches(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.insert(t, f.message("old"))

	// Duplicates inside the batch and against old rows.
	stored := f.insert(t, f.message("new"), f.message("old"), f.message("new"), f.message("newer"))
	var got []bool
	for _, s := range stored {
		got = append(got, s.Duplicate)
	}
	if want := []bool{false, true, true, false}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("duplicates = %v, want %v", got, want)
	}
	if stored[2].ID != stored[0].ID {
		t.Errorf("the duplicate inside the batch is of %d, want %d", stored[2].ID, stored[0].ID)
	}

	for name, spoil := range map[string]func(*inbox.Message){
		"an id with NUL":           func(m *inbox.Message) { m.MessageID = "a\x00b" },
		"an id that is not UTF-8":  func(m *inbox.Message) { m.MessageID = "a\xff" },
		"an id that is too long":   func(m *inbox.Message) { m.MessageID = strings.Repeat("x", 513) },
		"an empty id":              func(m *inbox.Message) { m.MessageID = "" },
		"a type that is too long":  func(m *inbox.Message) { m.MessageType = strings.Repeat("x", 513) },
		"an ordering key with NUL": func(m *inbox.Message) { m.OrderingKey = "\x00" },
	} {
		bad := f.message("spoilt")
		spoil(&bad)
		_, err := f.Insert(t.Context(), f.version, []inbox.Message{f.message("good " + name), bad})
		if !errors.Is(err, inbox.ErrRefused) {
			t.Errorf("%s: Insert = %v, want ErrRefused", name, err)
		}
		if err != nil && strings.Contains(err.Error(), "spoilt") {
			t.Errorf("%s: the error repeats the row: %v", name, err)
		}
	}
	if n := f.value(t, `SELECT count(*) FROM inbox_message`); n != 3 {
		t.Errorf("%d messages, want the 3 of the good batches", n)
	}

	// A stale version writes nothing and is never "duplicate".
	f.addHandler(t, "stock")
	if _, err := f.Insert(t.Context(), f.version, []inbox.Message{f.message("old"), f.message("later")}); !errors.Is(err, inbox.ErrStaleSnapshot) {
		t.Errorf("Insert = %v, want ErrStaleSnapshot", err)
	}
	if n := f.value(t, `SELECT count(*) FROM inbox_key`); n != 3 {
		t.Errorf("%d keys, want 3", n)
	}
	f.checkClean(t)
}

func TestMissingPartitionIsMade(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, table := range []string{"inbox_message", "outcome", "attempt"} {
		f.exec(t, `DO $$ DECLARE p regclass; BEGIN
FOR p IN SELECT inhrelid FROM pg_inherits WHERE inhparent = '`+table+`'::regclass LOOP EXECUTE 'DROP TABLE ' || p; END LOOP; END $$`)
	}
	var failures int
	errs := make(chan error, 8)
	for i := range cap(errs) {
		go func() {
			_, err := f.Insert(t.Context(), f.version, []inbox.Message{f.message(fmt.Sprint("m", i))})
			errs <- err
		}()
	}
	for range cap(errs) {
		if err := <-errs; err != nil {
			failures++
			t.Errorf("Insert = %v, want the day to be made", err)
		}
	}
	if f.MissedPartitions() == 0 {
		t.Errorf("MissedPartitions = 0, want it counted")
	}
	claims := f.claim(t, 8)
	if len(claims) != 8-failures {
		t.Fatalf("claimed %d, want %d", len(claims), 8-failures)
	}
	f.record(t, done(claims[0]), failed(claims[1]))
	if made, err := f.MakePartitions(t.Context(), 14); err != nil || made != 3*14 {
		t.Errorf("MakePartitions = %d, %v, want the 14 days ahead of three tables", made, err)
	}
	if made, err := f.MakePartitions(t.Context(), 14); err != nil || made != 0 {
		t.Errorf("MakePartitions again = %d, %v, want none", made, err)
	}
	f.checkClean(t)
}

func TestClaimsSideBySide(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var messages []inbox.Message
	for i := range 200 {
		messages = append(messages, f.message(fmt.Sprint("m", i)))
	}
	f.insert(t, messages...)
	type page struct {
		claims []inbox.Claim
		err    error
	}
	pages := make(chan page, 4)
	for i := range cap(pages) {
		go func() {
			token := inbox.Token{0: byte(i + 1), 6: 0x40, 8: 0x80}
			claims, _, err := f.Claim(context.Background(), owner, token, []inbox.Want{{HandlerID: f.handler, Free: 50, Lease: lease}})
			pages <- page{claims, err}
		}()
	}
	var all []inbox.Claim
	seen := make(map[inbox.DeliveryID]bool)
	for range cap(pages) {
		p := <-pages
		if p.err != nil {
			t.Fatal(p.err)
		}
		for _, c := range p.claims {
			if seen[c.DeliveryID] {
				t.Errorf("%s was claimed twice", c.DeliveryID)
			}
			seen[c.DeliveryID] = true
			all = append(all, c)
		}
	}
	for _, c := range f.claim(t, 200) {
		seen[c.DeliveryID] = true
		all = append(all, c)
	}
	if len(seen) != 200 {
		t.Errorf("claimed %d, want all 200", len(seen))
	}
	found, err := f.Messages(t.Context(), all)
	if err != nil || len(found) != 200 {
		t.Fatalf("Messages = %d, %v, want 200", len(found), err)
	}
	for _, m := range found {
		if string(m.Body) != "body of "+m.MessageID {
			t.Errorf("message %s has the body %q", m.MessageID, m.Body)
		}
	}
	f.checkClean(t)
}

func TestLeadChangesHands(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	lead := func(owner string) int64 {
		t.Helper()
		term, err := f.Lead(t.Context(), owner, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		return term
	}
	if a, b := lead("a"), lead("b"); a != 1 || b != 0 {
		t.Errorf("terms %d, %d, want 1 for the first and 0 for the other", a, b)
	}
	if again := lead("a"); again != 1 {
		t.Errorf("renewed as term %d, want 1", again)
	}
	if err := f.Yield(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if b, a := lead("b"), lead("a"); b != 2 || a != 0 {
		t.Errorf("terms %d, %d, want 2 for the new leader and 0 for the old", b, a)
	}
}

// TestWholeSchedule takes a thousand deliveries through every retry [E6]. The clock is the database's; the test
// turns it by moving what is due.
func TestWholeSchedule(t *testing.T) {
	t.Parallel()
	const (
		rows       = 1000
		maxRetries = 5
	)
	f := newFixture(t)
	var messages []inbox.Message
	for i := range rows {
		m := f.message(fmt.Sprint("m", i))
		m.Routes[0].MaxRetryCount = maxRetries
		messages = append(messages, m)
	}
	f.insert(t, messages...)
	backoff := inbox.Backoff{Base: time.Second, Cap: 10 * time.Second}
	for attempt := range maxRetries + 1 {
		claims := f.claim(t, rows+1)
		if len(claims) != rows {
			t.Fatalf("attempt %d: claimed %d, want %d", attempt+1, len(claims), rows)
		}
		results := make([]inbox.Result, len(claims))
		for i, c := range claims {
			if c.RetryCount != attempt {
				t.Fatalf("attempt %d: %s has used %d retries", attempt+1, c.DeliveryID, c.RetryCount)
			}
			results[i] = failed(c)
			results[i].Delay = backoff.Jittered(c.RetryCount)
		}
		f.record(t, results...)
		if n := f.value(t, `SELECT count(*) FROM delivery WHERE next_retry_time <= now()`); n != 0 {
			t.Errorf("attempt %d: %d deliveries are due in the past", attempt+1, n)
		}
		if early := f.claim(t, rows); len(early) != 0 {
			t.Fatalf("attempt %d: %d were claimed before they were due", attempt+1, len(early))
		}
		f.exec(t, `UPDATE delivery SET next_retry_time = now() WHERE status = 'FAILED'`)
	}
	if n := f.value(t, `SELECT count(*) FROM delivery WHERE status = 'MANUAL_REQUIRED' AND retry_count = 5`); n != rows {
		t.Errorf("%d parked with all retries used, want %d", n, rows)
	}
	if n := f.value(t, `SELECT count(*) FROM attempt`); n != rows*(maxRetries+1) {
		t.Errorf("%d attempts, want the planned %d", n, rows*(maxRetries+1))
	}
	f.checkClean(t)
}
