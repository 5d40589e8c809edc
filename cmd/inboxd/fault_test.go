package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/inboxd/inboxd/inbox"
	"github.com/inboxd/inboxd/ingest"
	"github.com/inboxd/inboxd/postgres"
	"github.com/inboxd/inboxd/postgres/pgtest"
)

// Fault tests: what was acknowledged is a row, and every row reaches its handler, whatever dies meanwhile.
// Names in brackets are those of the public failure stories that a test answers to.

func TestKilledUnderLoad(t *testing.T) { // [A5, E1]
	t.Parallel()
	w := newWorld(t)
	handler := newDownstream(t, nil)
	addresses := freeAddresses(t, 2)
	p := w.startProcess(t, addresses[0], addresses[1])
	registerShop(t, &p.instance)
	registerHandler(t, &p.instance, "books", handler.URL, nil)

	public := p.public // of every process that comes after it
	load := startLoad(16, func() string { return public })
	for range 2 {
		before := load.count()
		eventually(t, 20*time.Second, "200 more messages are acknowledged", func() bool { return load.count() > before+200 })
		p.kill()
		p = w.startProcess(t, addresses[0], addresses[1])
	}
	before := load.count()
	eventually(t, 20*time.Second, "work goes on", func() bool { return load.count() > before+200 })
	load.stop()

	if lost := load.missing(t, w); len(lost) > 0 {
		t.Errorf("%d of %d acknowledged messages have no row: %v", len(lost), load.count(), lost[:min(5, len(lost))])
	}
	// What the killed processes had claimed comes back when its lease, 16 s, has run out.
	eventually(t, time.Minute, "every delivery is DONE", func() bool {
		return w.count(t, `SELECT count(*) FROM delivery`) == 0
	})
	messages := w.count(t, `SELECT count(*) FROM inbox_message`)
	if done := w.count(t, `SELECT count(*) FROM outcome WHERE result = 'DONE'`); done != messages {
		t.Errorf("%d of %d messages are DONE", done, messages)
	}
	if got := handler.distinct(); got != messages {
		t.Errorf("the handler saw %d of %d messages", got, messages)
	}
	// Claims that were lost are attempts, under a new token each time.
	expired := w.count(t, `SELECT count(*) FROM attempt WHERE class = 'lease_expired'`)
	tokens := w.count(t, `SELECT count(DISTINCT (id, handler_id, claim_token)) FROM attempt WHERE class = 'lease_expired'`)
	if expired != tokens {
		t.Errorf("%d expired leases under %d tokens", expired, tokens)
	}
	t.Logf("%d messages, %d leases ran out", messages, expired)
	w.checkClean(t)
}

func TestRollingRestart(t *testing.T) { // [A19]
	t.Parallel()
	w := newWorld(t)
	handler := newDownstream(t, nil)
	addresses := freeAddresses(t, 4)
	flags := []string{"--drain-delay=1s"}
	instances := []*process{
		w.startProcess(t, addresses[0], addresses[1], flags...), w.startProcess(t, addresses[2], addresses[3], flags...),
	}
	registerShop(t, &instances[0].instance)
	registerHandler(t, &instances[0].instance, "books", handler.URL, nil)
	// The other instance learns of the source within a second.
	client := &http.Client{}
	eventually(t, time.Second, "the source is known everywhere", func() bool {
		status, _, err := postShop(t.Context(), client, instances[1].public, "first", []byte("{}"))
		return err == nil && status == http.StatusOK
	})

	// A load balancer: it asks for readiness and sends to those who have it.
	var ready [2]atomic.Bool
	var mu sync.Mutex // guards instances
	balancing, stopBalancing := context.WithCancel(t.Context())
	var balancer sync.WaitGroup
	defer balancer.Wait()
	defer stopBalancing()
	balancer.Go(func() {
		for balancing.Err() == nil {
			mu.Lock()
			now := [2]*process{instances[0], instances[1]}
			mu.Unlock()
			for i, p := range now {
				ready[i].Store(p.probe("/readyz") == http.StatusOK)
			}
			time.Sleep(50 * time.Millisecond)
		}
	})
	eventually(t, 5*time.Second, "both are ready", func() bool { return ready[0].Load() && ready[1].Load() })
	var turn atomic.Int64
	load := startLoad(16, func() string {
		mu.Lock()
		defer mu.Unlock()
		for range 2 {
			if i := turn.Add(1) % 2; ready[i].Load() {
				return instances[i].public
			}
		}
		return ""
	})
	for i := range instances {
		before := load.count()
		eventually(t, 20*time.Second, "200 more messages are acknowledged", func() bool { return load.count() > before+200 })
		old := instances[i]
		old.signal(syscall.SIGTERM)
		eventually(t, 20*time.Second, "the process ends", func() bool { return !old.running() })
		if !old.cmd.ProcessState.Success() {
			t.Errorf("the process ended with %s", old.cmd.ProcessState)
		}
		next := w.startProcess(t, addresses[2*i], addresses[2*i+1], flags...)
		mu.Lock()
		instances[i] = next
		mu.Unlock()
	}
	load.stop()
	for _, err := range load.errors {
		t.Errorf("a request had no answer: %v", err)
	}
	for status, n := range load.statuses {
		if status != http.StatusOK && status != 0 {
			t.Errorf("%d requests were answered %d", n, status)
		}
	}
	if lost := load.missing(t, w); len(lost) > 0 {
		t.Errorf("%d acknowledged messages have no row", len(lost))
	}
	eventually(t, 30*time.Second, "every delivery is DONE", func() bool {
		return w.count(t, `SELECT count(*) FROM delivery`) == 0
	})
	if reclaimed := w.count(t, `SELECT count(*) FROM attempt WHERE class = 'lease_expired'`); reclaimed > 0 {
		t.Errorf("%d claims ran out: a process that stops in order gives them back", reclaimed)
	}
	w.checkClean(t)
}

func TestPostgresRestarts(t *testing.T) { // [A6, D9]
	t.Parallel()
	cluster := pgtest.Cluster(t, nil)
	w := worldAt(t, cluster.URL(""))
	handler := newDownstream(t, nil)
	addresses := freeAddresses(t, 2)
	p := w.startProcess(t, addresses[0], addresses[1])
	registerShop(t, &p.instance)
	registerHandler(t, &p.instance, "books", handler.URL, nil)
	load := startLoad(8, func() string { return p.public })

	for round := range 10 {
		before := load.count()
		eventually(t, 10*time.Second, "messages are acknowledged", func() bool { return load.count() > before+50 })
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		if round%2 == 0 {
			if err := cluster.Stop(ctx); err != nil {
				t.Fatal(err)
			}
		} else if err := cluster.Kill(); err != nil {
			t.Fatal(err)
		}
		down := time.Now()
		// Refused at once, with the advice to come again; not ready, but alive.
		client := &http.Client{Timeout: 10 * time.Second}
		started := time.Now()
		status, header, err := postShop(ctx, client, p.public, fmt.Sprint("probe-", round), []byte("{}"))
		if err != nil || status != http.StatusServiceUnavailable || header.Get("Retry-After") == "" {
			t.Errorf("round %d: %d, %v, Retry-After %q, want 503 with Retry-After", round, status, err, header.Get("Retry-After"))
		}
		if took := time.Since(started); took > 6*time.Second {
			t.Errorf("round %d: the 503 took %s", round, took)
		}
		eventually(t, 3*time.Second, "/readyz says no", func() bool { return p.probe("/readyz") == http.StatusServiceUnavailable })
		if alive := p.probe("/healthz"); alive != http.StatusOK {
			t.Errorf("round %d: /healthz says %d", round, alive)
		}
		for time.Since(down) < 5*time.Second {
			time.Sleep(50 * time.Millisecond) // the outage's length is what is tested
		}
		if err := cluster.Restart(ctx); err != nil {
			t.Fatal(err)
		}
		cancel()
		up := time.Now()
		before = load.count()
		eventually(t, 10*time.Second, "messages are acknowledged again", func() bool { return load.count() > before })
		if took := time.Since(up); took > 2*time.Second {
			t.Errorf("round %d: work resumed after %s, want within 2 s", round, took)
		}
		eventually(t, 3*time.Second, "/readyz says yes", func() bool { return p.probe("/readyz") == http.StatusOK })
		if !p.running() {
			t.Fatalf("round %d: the process has ended", round)
		}
	}
	load.stop()
	for status := range load.statuses {
		if status != http.StatusOK && status != http.StatusServiceUnavailable {
			t.Errorf("answers were %v, want 200 and 503 alone; %v", load.statuses, load.errors)
		}
	}
	for _, header := range load.refusals {
		if header.Get("Retry-After") == "" {
			t.Error("a 503 without Retry-After")
			break
		}
	}
	w.pool.Reset()
	if lost := load.missing(t, w); len(lost) > 0 {
		t.Errorf("%d of %d acknowledged messages have no row", len(lost), load.count())
	}
	// What was claimed and could not be recorded before the server went is recorded or comes back.
	eventually(t, 90*time.Second, "every delivery is DONE", func() bool {
		return w.count(t, `SELECT count(*) FROM delivery`) == 0
	})
	w.checkClean(t)
}

func TestReadOnlyAndFailover(t *testing.T) { // [D8]
	t.Parallel()
	old, next := pgtest.Cluster(t, nil), pgtest.Cluster(t, nil)
	name := newSwitch(t, old.URL(""))
	w := worldAt(t, old.URL(""))
	addresses := freeAddresses(t, 2)
	named := &world{url: name.url(old.URL("")), token: w.token, pool: w.pool}
	p := named.startProcess(t, addresses[0], addresses[1])
	registerShop(t, &p.instance)
	load := startLoad(8, func() string { return p.public })

	acknowledged := func(what string, within time.Duration) {
		t.Helper()
		before := load.count()
		started := time.Now()
		eventually(t, 15*time.Second, "messages are acknowledged "+what, func() bool { return load.count() > before+20 })
		if took := time.Since(started); took > within {
			t.Errorf("%s work resumed after %s, want within %s", what, took, within)
		}
	}
	refused := func() {
		t.Helper()
		eventually(t, 10*time.Second, "messages are refused with 503", func() bool {
			status, header, _ := postShop(t.Context(), http.DefaultClient, p.public, "probe", []byte("{}"))
			return status == http.StatusServiceUnavailable && header.Get("Retry-After") != ""
		})
		eventually(t, 3*time.Second, "/readyz says no", func() bool { return p.probe("/readyz") == http.StatusServiceUnavailable })
	}
	readOnly := func(on string) {
		t.Helper()
		conn, err := w.pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
		for _, sql := range []string{
			`SET default_transaction_read_only = off`, `ALTER SYSTEM SET default_transaction_read_only = ` + on, `SELECT pg_reload_conf()`,
		} {
			if _, err := conn.Exec(t.Context(), sql); err != nil {
				t.Fatalf("%s: %v", sql, err)
			}
		}
	}

	acknowledged("at first", 10*time.Second)
	readOnly("on")
	refused()
	readOnly("off")
	acknowledged("when it can be written to again", 2*time.Second)

	// Failover: the old primary turns read-only, and the name leads to another server.
	readOnly("on")
	refused()
	after := worldAt(t, next.URL(""))
	after.exec(t, `INSERT INTO source (name, provider, settings, secrets) VALUES ('shop', 'hmac', $1, $2)`,
		`{"signature": {"in": "header:X-Signature"}, "message_id": ["{header:X-Id}"], "message_type": ["{header:X-Type}"]}`, []string{shopSecret})
	name.lead(next.URL(""))
	acknowledged("at the new primary", 5*time.Second)
	load.stop()
	if n := after.count(t, `SELECT count(*) FROM inbox_message`); n == 0 {
		t.Error("the new primary has no messages")
	}
	after.checkClean(t)
}

// dbSwitch is a name of a database: connections made to it lead to where it points at the time.
type dbSwitch struct {
	listener net.Listener
	network  atomic.Pointer[[2]string]
}

func newSwitch(t *testing.T, databaseURL string) *dbSwitch {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &dbSwitch{listener: listener}
	s.lead(databaseURL)
	var wg sync.WaitGroup
	t.Cleanup(func() { _ = listener.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer client.Close()
				to := *s.network.Load()
				server, err := net.Dial(to[0], to[1])
				if err != nil {
					return
				}
				defer server.Close()
				go func() { _, _ = io.Copy(server, client); _ = server.Close() }()
				_, _ = io.Copy(client, server)
			})
		}
	})
	return s
}

// lead makes new connections lead to another server.
func (s *dbSwitch) lead(databaseURL string) {
	to := networkOf(databaseURL)
	s.network.Store(&to)
}

// url is the address of the name, with what else stands in the server's URL.
func (s *dbSwitch) url(databaseURL string) string {
	return viaHost(databaseURL, s.listener.Addr().(*net.TCPAddr))
}

func TestAnswerWaitsForCommit(t *testing.T) { // [A4]
	t.Parallel()
	w := newWorld(t)
	i := w.start(t)
	registerShop(t, i)
	// A deferred trigger runs inside COMMIT: whoever holds its lock holds the commit.
	w.exec(t, `CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM pg_advisory_xact_lock(42); RETURN NULL; END $$`)
	w.exec(t, `CREATE CONSTRAINT TRIGGER hold AFTER INSERT ON inbox_key DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION hold()`)
	tx, err := w.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT pg_advisory_xact_lock(42)`); err != nil {
		t.Fatal(err)
	}
	answered := make(chan int, 1)
	go func() {
		status, _, _ := postShop(context.Background(), &http.Client{}, i.public, "m1", []byte("{}"))
		answered <- status
	}()
	eventually(t, 5*time.Second, "the commit waits for the lock", func() bool {
		return w.count(t, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
AND wait_event = 'advisory'`) == 1
	})
	select {
	case status := <-answered:
		t.Errorf("answered %d before the commit", status)
	default:
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if status := <-answered; status != http.StatusOK {
		t.Errorf("answered %d after the commit, want 200", status)
	}
	if n := w.count(t, `SELECT count(*) FROM inbox_message`); n != 1 {
		t.Errorf("%d rows, want 1", n)
	}
}

// lossyStore loses answers: it commits, and reports that nobody knows.
type lossyStore struct {
	ingest.Store
	lose atomic.Bool
}

func (s *lossyStore) Insert(ctx context.Context, version int64, batch []inbox.Message) ([]inbox.Stored, error) {
	stored, err := s.Store.Insert(ctx, version, batch)
	if err == nil && s.lose.Load() {
		return nil, fmt.Errorf("the connection broke at COMMIT: %w", inbox.ErrUnavailable)
	}
	return stored, err
}

func TestLostCommitAnswer(t *testing.T) { // [A4]
	t.Parallel()
	w := newWorld(t)
	db, err := postgres.Open(t.Context(), w.url, 4)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	store := &lossyStore{Store: db}
	store.lose.Store(true)
	i := w.start(t, func(cfg *gatewayConfig) { cfg.Store = store })
	registerShop(t, i)
	client := &http.Client{}
	if status, header, err := postShop(t.Context(), client, i.public, "m1", []byte("{}")); status != http.StatusServiceUnavailable || header.Get("Retry-After") == "" {
		t.Errorf("%d, %v, want 503 with Retry-After: nobody knows", status, err)
	}
	store.lose.Store(false)
	status, header, err := postShop(t.Context(), client, i.public, "m1", []byte("{}"))
	if status != http.StatusOK || header.Get("Inbox-Duplicate") != "true" {
		t.Errorf("sent again: %d, duplicate %q, %v, want 200 and a duplicate", status, header.Get("Inbox-Duplicate"), err)
	}
	if n := w.count(t, `SELECT count(*) FROM inbox_message`); n != 1 {
		t.Errorf("%d rows, want 1", n)
	}
}

func TestInsertFailsAfterTheKey(t *testing.T) { // [A3]
	t.Parallel()
	w := newWorld(t)
	i := w.start(t)
	registerShop(t, i)
	w.exec(t, `CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'a fault' USING ERRCODE = 'XX000'; END $$`)
	w.exec(t, `CREATE TRIGGER fail BEFORE INSERT ON inbox_message FOR EACH ROW EXECUTE FUNCTION fail()`)
	client := &http.Client{}
	if status, _, err := postShop(t.Context(), client, i.public, "m1", []byte("{}")); status != http.StatusServiceUnavailable {
		t.Errorf("%d, %v, want 503", status, err)
	}
	w.exec(t, `DROP TRIGGER fail ON inbox_message`)
	status, header, err := postShop(t.Context(), client, i.public, "m1", []byte("{}"))
	if status != http.StatusOK || header.Get("Inbox-Duplicate") != "" {
		t.Errorf("sent again: %d, duplicate %q, %v, want 200 and stored", status, header.Get("Inbox-Duplicate"), err)
	}
	if n := w.count(t, `SELECT count(*) FROM inbox_message`); n != 1 {
		t.Errorf("%d rows, want 1", n)
	}
	w.checkClean(t)
}

func TestPausedProcessorWritesBackLate(t *testing.T) { // [E3, E4]
	t.Parallel()
	w := newWorld(t)
	var calls atomic.Int64
	handler := newDownstream(t, nil)
	addresses := freeAddresses(t, 4)
	slow := w.startProcess(t, addresses[0], addresses[1])
	registerShop(t, &slow.instance)
	reached, resume := make(chan struct{}), make(chan struct{})
	handler.answer = func(http.ResponseWriter, *http.Request, []byte) {
		if calls.Add(1) == 1 {
			close(reached)
			<-resume // the first attempt is answered only when the processor has been paused and woken again
		}
	}
	t.Cleanup(sync.OnceFunc(func() {
		select {
		case <-resume:
		default:
			close(resume)
		}
	}))
	registerHandler(t, &slow.instance, "books", handler.URL, map[string]any{"timeout": "1s"})
	if status, _, err := postShop(t.Context(), &http.Client{}, slow.public, "m1", []byte("{}")); status != http.StatusOK {
		t.Fatalf("%d, %v", status, err)
	}
	<-reached
	slow.signal(syscall.SIGSTOP)

	// Another instance leads, takes the claim back when its lease has run out, and delivers.
	other := w.startProcess(t, addresses[2], addresses[3])
	eventually(t, 90*time.Second, "the other instance delivers", func() bool {
		return w.count(t, `SELECT count(*) FROM outcome WHERE result = 'DONE'`) == 1
	})
	var before string
	row := `SELECT (o.claim_seq, o.claim_token, o.finished_at)::text FROM outcome AS o`
	if err := w.pool.QueryRow(t.Context(), row).Scan(&before); err != nil {
		t.Fatal(err)
	}
	close(resume)
	slow.signal(syscall.SIGCONT)
	eventually(t, 20*time.Second, "the late write-back is recorded as stale", func() bool {
		return w.count(t, `SELECT count(*) FROM attempt WHERE stale`) == 1
	})
	eventually(t, 5*time.Second, "and counted", func() bool { return slow.metric(t, "inboxd_stale_writebacks_total") == 1 })
	var after string
	if err := w.pool.QueryRow(t.Context(), row).Scan(&after); err != nil {
		t.Fatal(err)
	}
	if before != after {
		t.Errorf("the outcome was %s and is now %s", before, after)
	}
	if n := w.count(t, `SELECT count(*) FROM attempt WHERE class = 'lease_expired'`); n != 1 {
		t.Errorf("%d expired leases, want 1", n)
	}
	_ = other
	w.checkClean(t)
}

func TestDatabaseAwayAtStart(t *testing.T) {
	t.Parallel()
	cluster := pgtest.Cluster(t, nil)
	w := worldAt(t, cluster.URL(""))
	first := w.start(t)
	registerShop(t, first)
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	if err := cluster.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	settings := defaultGatewayFlags()
	settings.Listen, settings.AdminListen, settings.DrainDelay = "127.0.0.1:0", "127.0.0.1:0", 0
	settings.SecretKeys = testKeys
	ctx, cancel := context.WithCancel(context.Background())
	g, err := newGateway(ctx, gatewayConfig{DatabaseURL: w.url, Settings: settings})
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- g.run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the gateway ended with %v", err)
		}
	}()
	public := "http://" + g.public.Addr().String()
	// Unknown sources are not known to be unknown: 503, never 404.
	if status, _, err := postShop(t.Context(), &http.Client{}, public, "m1", []byte("{}")); status != http.StatusServiceUnavailable {
		t.Errorf("%d, %v, want 503", status, err)
	}
	if err := cluster.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, 5*time.Second, "the source is known", func() bool {
		status, _, err := postShop(t.Context(), &http.Client{}, public, "m1", []byte("{}"))
		return err == nil && status == http.StatusOK
	})
}

// networkOf returns where a database URL leads, as net.Dial wants it.
func networkOf(databaseURL string) [2]string {
	cfg, err := pgconn.ParseConfig(databaseURL)
	if err != nil {
		panic(err)
	}
	network, address := pgconn.NetworkAddress(cfg.Host, cfg.Port)
	return [2]string{network, address}
}

// viaHost returns the database URL with another address.
func viaHost(databaseURL string, address *net.TCPAddr) string {
	cfg, err := pgconn.ParseConfig(databaseURL)
	if err != nil {
		panic(err)
	}
	via := url.URL{
		Scheme: "postgres", User: url.UserPassword(cfg.User, cfg.Password), Host: address.String(), Path: "/" + cfg.Database,
		RawQuery: "sslmode=disable",
	}
	return via.String()
}

// TestSlowListsLeaveReadinessAlone: whoever reads the API can't take an instance out of the load balancer.
func TestSlowListsLeaveReadinessAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.start(t)
	tx, err := w.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var lists sync.WaitGroup
	defer func() {
		_ = tx.Rollback(t.Context())
		lists.Wait()
	}()
	if _, err := tx.Exec(t.Context(), `LOCK TABLE audit IN ACCESS EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	for range adminConnections {
		lists.Go(func() {
			if _, err := (operators{url: i.admin, token: i.token}).call(t.Context(), http.MethodGet, "/audit", nil, nil); err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, 20*time.Second, "as many lists as the API has connections wait", func() bool {
		return w.count(t, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) == adminConnections
	})
	for end := time.Now().Add(2 * readyCache); time.Now().Before(end); { // so that it asks the database anew
		if status := i.probe("/readyz"); status != http.StatusOK {
			t.Fatalf("/readyz = %d while lists wait", status)
		}
	}
}
