package postgres_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/inboxd/inboxd/inbox"
)

// TestStats counts a small history, where every number is exact.
func TestStats(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	other := f.addHandler(t, "other")
	f.readVersion(t)
	for i := range 10 {
		f.insert(t, f.message(fmt.Sprintf("m%d", i)))
	}
	lost := f.message("lost")
	lost.Routes = nil
	f.insert(t, lost)
	claims := f.claim(t, 7)
	f.record(t, done(claims[0]), done(claims[1]), failed(claims[2]), permanent(claims[3]))
	f.exec(t, `UPDATE outcome SET duration = '80 ms', received_at = finished_at - interval '2 s' WHERE result = 'DONE'`)
	f.exec(t, `UPDATE delivery SET lease_until = now() - interval '5 min' WHERE id = $1`, claims[5].Message)
	f.exec(t, `UPDATE handler SET paused = true WHERE id = $1`, f.handler)
	f.exec(t, `INSERT INTO delivery (id, handler_id, source_id, received_at, next_retry_time, status, max_retry_count) VALUES (999, $1, $2, now(), now(), 'PENDING', 2)`,
		other, f.source)
	f.exec(t, `UPDATE handler SET deleted_at = now() WHERE id = $1`, other)
	f.exec(t, `UPDATE source SET enabled = false`)

	s, err := f.Stats(t.Context(), nil, 2*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	for what, r := range map[string][2]inbox.Rate{
		"received": {s.Received, {PerMinute: 5.5}}, "attempts": {s.Attempts, {PerMinute: 2}}, "failed": {s.Failed, {PerMinute: 1}}, "ended": {s.Ended, {PerMinute: 1.5}},
	} {
		if r[0] != r[1] {
			t.Errorf("%s = %+v, want %+v", what, r[0], r[1])
		}
	}
	if s.Unfinished != (inbox.Count{N: 9}) || s.Backlog[inbox.ManualRequired] != (inbox.Count{N: 1}) || s.Backlog[inbox.Pending] != (inbox.Count{N: 4}) {
		t.Errorf("unfinished %+v, backlog %+v", s.Unfinished, s.Backlog)
	}
	if len(s.Handlers) != 2 {
		t.Fatalf("handlers %+v", s.Handlers)
	}
	h := s.Handlers[0]
	if h.Handler != "books" || !h.Paused || h.Done.PerMinute != 1 || h.Failed.PerMinute != 1 || h.Backlog[inbox.Failed].N != 1 || h.Backlog[inbox.Processing].N != 3 ||
		h.OldestDue.IsZero() || h.OldestParked.IsZero() || h.EndToEnd != (inbox.Percentiles{Sample: 2, P50: 2 * time.Second, P95: 2 * time.Second, P99: 2 * time.Second}) ||
		h.Attempt.P99 != 80*time.Millisecond {
		t.Errorf("books = %+v", h)
	}
	var places []string
	for _, p := range s.Parking {
		places = append(places, fmt.Sprintf("%s %s%s %d %v", p.Place, p.Handler, p.Source, p.Count.N, p.Oldest.IsZero()))
	}
	want := `handler_deleted other 1 false
lease_expired books 1 false
parked books 1 false
paused books 4 false
source_disabled shop 0 true
unrouted  1 false`
	if got := strings.Join(places, "\n"); got != want {
		t.Errorf("parking is\n%s\nwant\n%s", got, want)
	}

	// A replay takes the message out of its place.
	f.exec(t, `INSERT INTO outcome (id, handler_id, source_id, received_at, finished_at, result) SELECT id, $1, source_id, received_at, now(), 'DONE' FROM outcome WHERE result = 'UNROUTED'`, f.handler)
	parking, err := f.Parking(t.Context())
	if err != nil || len(parking) != len(s.Parking)-1 {
		t.Errorf("after the replay: %+v, %v", parking, err)
	}
}

// TestStatsStopAtTheirBounds: what is beyond a bound is said to be.
func TestStatsStopAtTheirBounds(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(t, `INSERT INTO delivery (id, handler_id, source_id, received_at, next_retry_time, status, max_retry_count)
SELECT n, $1, $2, now(), now(), 'PENDING', 2 FROM generate_series(1, 61000) AS n`, f.handler, f.source)
	f.exec(t, `INSERT INTO outcome (id, handler_id, source_id, received_at, finished_at, claimed_at, result, duration)
SELECT n, $1, $2, now(), now() - n * interval '1 ms', now(), 'DONE', '1 ms' FROM generate_series(1, 10001) AS n`, f.handler, f.source)
	f.exec(t, `INSERT INTO outcome (id, source_id, received_at, finished_at, result)
SELECT n, $1, now(), now() - interval '1 hour', 'UNROUTED' FROM generate_series(200001, 201001) AS n`, f.source)
	f.exec(t, `ANALYZE delivery`)
	s, err := f.Stats(t.Context(), nil, 5*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if s.Backlog[inbox.Pending] != (inbox.Count{N: 60000, AtLeast: true}) || !s.Unfinished.Estimated || s.Unfinished.N < 61000 {
		t.Errorf("backlog %+v, unfinished %+v", s.Backlog, s.Unfinished)
	}
	// One each millisecond, and the time since they were made on top.
	if !s.Ended.Estimated || s.Ended.PerMinute > 60_001 || s.Ended.PerMinute <= 0 || s.Received.Estimated {
		t.Errorf("ended %+v, received %+v", s.Ended, s.Received)
	}
	if last := s.Parking[len(s.Parking)-1]; last.Place != inbox.PlaceUnrouted || last.Count != (inbox.Count{N: 1000, AtLeast: true}) {
		t.Errorf("the last place is %+v", last)
	}
}

func TestSystem(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.insert(t, f.message("one"), f.message("two"))
	f.claim(t, 1)
	if _, err := f.Lead(t.Context(), "the leader", time.Minute); err != nil {
		t.Fatal(err)
	}
	// Somebody else's transaction, the oldest.
	tx, err := f.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	var pid int
	if err := tx.QueryRow(t.Context(), `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
		t.Fatal(err)
	}
	f.insert(t, f.message("three"))
	younger, err := f.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = younger.Rollback(t.Context()) }()
	if _, err := younger.Exec(t.Context(), `SELECT`); err != nil {
		t.Fatal(err)
	}

	s, err := f.System(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if s.PostgreSQL == "" || s.Schema.Applied != s.Schema.Known || s.Schema.Known == 0 || s.Leader.Owner != "the leader" || s.Leader.Term != 1 || !s.Leader.ExpiresAt.After(s.At) {
		t.Errorf("System = %+v", s)
	}
	if want := (inbox.Instance{Owner: "the leader", Leading: true}); len(s.Instances) != 2 || s.Instances[0] != want || s.Instances[1].Claims.N != 1 {
		t.Errorf("instances %+v", s.Instances)
	}
	if s.Oldest == nil || s.Oldest.Kind != "session" || !strings.HasSuffix(s.Oldest.Name, fmt.Sprintf("pid %d", pid)) || s.Oldest.Age < 1 || s.Oldest.Open <= 0 {
		t.Errorf("the oldest snapshot is %+v, want that of pid %d", s.Oldest, pid)
	}
	f.exec(t, `ANALYZE`)
	if s, err = f.System(t.Context()); err != nil {
		t.Fatal(err)
	}
	tables := make(map[string]inbox.Table)
	for _, table := range s.Tables {
		tables[table.Name] = table
	}
	m := tables["inbox_message"]
	if len(m.Partitions) < 3 || m.Rows.N < 3 || !m.Rows.Estimated || m.Bytes == 0 || !m.Until.Equal(m.Partitions[len(m.Partitions)-1].To) ||
		m.Partitions[0].To.Sub(m.Partitions[0].From) != 24*time.Hour || !m.Partitions[1].From.Equal(m.Partitions[0].To) {
		t.Errorf("inbox_message = %+v", m)
	}
	if d := tables["delivery"]; d.Rows.N < 3 || len(d.Partitions) != 0 || !d.Until.IsZero() {
		t.Errorf("delivery = %+v", d)
	}
	f.exec(t, `CREATE TABLE inbox_message_rest PARTITION OF inbox_message DEFAULT`)
	if s, err = f.System(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, table := range s.Tables {
		if table.Name == "inbox_message" && !table.Partitions[0].Default {
			t.Errorf("the default partition isn't shown: %+v", table.Partitions[0])
		}
	}
}
