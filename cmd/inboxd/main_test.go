package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"github.com/inboxd/inboxd/inbox"
	"github.com/inboxd/inboxd/postgres"
	"github.com/inboxd/inboxd/postgres/pgtest"
)

// asInboxd makes the test's own binary be the program, so that a test can start it as a process, kill it and
// stop it, with the race detector in it.
const asInboxd = "INBOXD_TEST_AS_INBOXD"

func TestMain(m *testing.M) {
	if os.Getenv(asInboxd) != "" {
		_ = os.Unsetenv(asInboxd)
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// testKeys seals the tests' secrets.
const testKeys = "test:dGhlIHRlc3RzJyBrZXkgcHJvdGVjdHMgbm90aGluZy4="

// world is a database with instances of inboxd on it.
type world struct {
	url   string
	token string
	pool  *pgxpool.Pool // the test's own look at the rows
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return worldAt(t, pgtest.New(t).URL)
}

func worldAt(t *testing.T, url string) *world {
	t.Helper()
	db, err := postgres.Open(t.Context(), url, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	token, err := db.CreateToken(t.Context(), inbox.Actor{Name: "test"}, &inbox.OperatorToken{Name: "test", Role: inbox.RoleAdmin, Scope: inbox.Everything()})
	if err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return &world{url: url, token: token, pool: pool}
}

func (w *world) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := w.pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func (w *world) count(t *testing.T, sql string, args ...any) int {
	t.Helper()
	var n int
	if err := w.pool.QueryRow(t.Context(), sql, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// checkClean runs `inboxd check`.
func (w *world) checkClean(t *testing.T) {
	t.Helper()
	var out bytes.Buffer
	if status := run(t.Context(), []string{"check", "--database-url", w.url}, &out, &out); status != 0 {
		t.Errorf("inboxd check ended with %d:\n%s", status, out.String())
	}
}

// eventually waits until the condition holds.
func eventually(t *testing.T, within time.Duration, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(within)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", within, what)
		}
		time.Sleep(10 * time.Millisecond) // between two looks, not instead of one
	}
}

// instance is an inboxd that runs in the test's process or in one of its own.
type instance struct {
	public, admin string
	token         string
	stop          func() error // stops it in order and waits
}

// start runs an instance in this process.
func (w *world) start(t *testing.T, change ...func(*gatewayConfig)) *instance {
	t.Helper()
	settings := defaultGatewayFlags()
	settings.Listen, settings.AdminListen = "127.0.0.1:0", "127.0.0.1:0"
	settings.DrainDelay, settings.SecretKeys = 0, testKeys
	cfg := gatewayConfig{DatabaseURL: w.url, Settings: settings, Log: zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.ErrorLevel)}
	for _, f := range change {
		f(&cfg)
	}
	ctx, cancel := context.WithCancel(context.Background())
	g, err := newGateway(ctx, cfg)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- g.run(ctx) }()
	i := &instance{admin: "http://" + g.admin.Addr().String(), token: w.token}
	if g.public != nil {
		i.public = "http://" + g.public.Addr().String()
	}
	i.stop = sync.OnceValue(func() error { cancel(); return <-ended })
	t.Cleanup(func() {
		if err := i.stop(); err != nil {
			t.Errorf("the instance ended with %v", err)
		}
	})
	eventually(t, 10*time.Second, "the instance is ready", func() bool { return i.probe("/readyz") == http.StatusOK })
	return i
}

func (i *instance) probe(path string) int {
	response, err := http.Get(i.admin + path)
	if err != nil {
		return 0
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, response.Body)
	return response.StatusCode
}

// call calls the operators' API and fails the test on a problem.
func (i *instance) call(t *testing.T, method, path string, in, out any) {
	t.Helper()
	if _, err := (operators{url: i.admin, token: i.token}).call(t.Context(), method, path, in, out); err != nil {
		t.Fatal(err)
	}
}

// process is an instance that can be killed.
type process struct {
	instance
	cmd    *exec.Cmd
	stderr *lockedBuffer
	exited chan struct{} // closed once the process is gone
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// startProcess runs `inboxd serve` as a process on fixed ports, as a restart needs them.
func (w *world) startProcess(t *testing.T, public, admin string, args ...string) *process {
	t.Helper()
	p := &process{stderr: &lockedBuffer{}, exited: make(chan struct{})}
	p.public, p.admin, p.token = "http://"+public, "http://"+admin, w.token
	p.cmd = exec.Command(os.Args[0], append([]string{"serve", "--database-url", w.url, "--listen", public, "--admin-listen", admin}, args...)...)
	p.cmd.Env = append(os.Environ(), asInboxd+"=1", "INBOXD_SECRET_KEYS="+testKeys)
	p.cmd.Stderr = p.stderr
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.exited)
	}()
	t.Cleanup(func() {
		p.signal(syscall.SIGKILL)
		<-p.exited
		if t.Failed() {
			t.Logf("log of the process:\n%s", tail(p.stderr.String(), 40))
		}
	})
	eventually(t, 20*time.Second, "the process is ready", func() bool { return p.probe("/readyz") == http.StatusOK })
	return p
}

func tail(text string, lines int) string {
	all := strings.Split(text, "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.exited
}

func (p *process) running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// freeAddresses returns addresses of loopback that nobody listens on.
func freeAddresses(t *testing.T, n int) []string {
	t.Helper()
	var addresses []string
	for range n {
		server := httptest.NewServer(nil)
		defer server.Close()
		addresses = append(addresses, server.Listener.Addr().String())
	}
	return addresses
}

// downstream is a handler that counts what it got by webhook-id.
type downstream struct {
	*httptest.Server
	mu     sync.Mutex
	got    map[string]int
	answer func(w http.ResponseWriter, r *http.Request, body []byte) // nil answers 200
}

func newDownstream(t *testing.T, answer func(http.ResponseWriter, *http.Request, []byte)) *downstream {
	t.Helper()
	d := &downstream{got: make(map[string]int), answer: answer}
	d.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		d.mu.Lock()
		d.got[r.Header.Get("Webhook-Id")]++
		d.mu.Unlock()
		if d.answer != nil {
			d.answer(w, r, body)
		}
	}))
	t.Cleanup(d.Close)
	return d
}

func (d *downstream) distinct() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.got)
}

// The shop's source signs with the generic sheet: X-Signature is the hex HMAC of the body, X-Id the id.
const shopSecret = "a secret of the shop"

func registerShop(t *testing.T, i *instance) {
	t.Helper()
	i.call(t, http.MethodPost, "/sources", map[string]any{
		"name": "shop", "provider": "hmac", "secrets": []string{shopSecret},
		"settings": map[string]any{
			"signature":    map[string]any{"in": "header:X-Signature"},
			"message_id":   []string{"{header:X-Id}"},
			"message_type": []string{"{header:X-Type}"},
		},
	}, nil)
}

func registerHandler(t *testing.T, i *instance, name, url string, more map[string]any) {
	t.Helper()
	handler := map[string]any{
		"name": name, "url": url, "sources": []string{"*"}, "timeout": "1s", "concurrency": 20,
		"backoff_base": "100ms", "backoff_cap": "1s", "max_retry_count": 20,
	}
	maps.Copy(handler, more)
	i.call(t, http.MethodPost, "/handlers", handler, nil)
}

// shopRequest signs a message of the shop.
func shopRequest(ctx context.Context, to, id string, body []byte) *http.Request {
	mac := hmac.New(sha256.New, []byte(shopSecret))
	mac.Write(body)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, to+"/in/shop", bytes.NewReader(body))
	if err != nil {
		panic(err)
	}
	request.Header.Set("X-Id", id)
	request.Header.Set("X-Type", "paid")
	request.Header.Set("X-Signature", hex.EncodeToString(mac.Sum(nil)))
	request.Header.Set("Content-Type", "application/json")
	return request
}

// post returns the status of the answer and its header; status 0 means that there was none.
func postShop(ctx context.Context, client *http.Client, to, id string, body []byte) (int, http.Header, error) {
	response, err := client.Do(shopRequest(ctx, to, id, body))
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return response.StatusCode, response.Header, err
}

// load sends messages of the shop until it is stopped, each until it is answered 2xx, as a provider does.
type load struct {
	mu       sync.Mutex
	acked    map[string]time.Time // when the 2xx came
	statuses map[int]int
	errors   []error       // requests without an answer
	refusals []http.Header // headers of the 503s
	lastAck  time.Time
	cancel   context.CancelFunc
	senders  sync.WaitGroup
}

// startLoad sends with so many senders to whatever target returns at the time.
func startLoad(senders int, target func() string) *load {
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{acked: make(map[string]time.Time), statuses: make(map[int]int), cancel: cancel}
	for sender := range senders {
		l.senders.Go(func() {
			client := &http.Client{Transport: &http.Transport{}, Timeout: 15 * time.Second}
			defer client.CloseIdleConnections()
			for n := 0; ctx.Err() == nil; n++ {
				id := fmt.Sprintf("m-%d-%d", sender, n)
				for !l.send(client, target, id) {
					if ctx.Err() != nil {
						return
					}
					time.Sleep(20 * time.Millisecond) // a provider that sends again waits a little
				}
			}
		})
	}
	return l
}

func (l *load) send(client *http.Client, target func() string, id string) bool {
	to := target()
	if to == "" {
		return false
	}
	status, header, err := postShop(context.Background(), client, to, id, []byte(`{"id":"`+id+`"}`))
	l.mu.Lock()
	defer l.mu.Unlock()
	l.statuses[status]++
	if err != nil {
		l.errors = append(l.errors, err)
		return false
	}
	if status == http.StatusServiceUnavailable {
		l.refusals = append(l.refusals, header)
	}
	if status/100 != 2 {
		return false
	}
	l.acked[id] = time.Now()
	l.lastAck = time.Now()
	return true
}

func (l *load) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.acked)
}

func (l *load) stop() {
	l.cancel()
	l.senders.Wait()
}

// missing returns the acknowledged messages that have no row.
func (l *load) missing(t *testing.T, w *world) []string {
	t.Helper()
	rows, _ := w.pool.Query(t.Context(), `SELECT message_id FROM inbox_message`)
	stored, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	have := make(map[string]bool, len(stored))
	for _, id := range stored {
		have[id] = true
	}
	var lost []string
	for id := range l.acked {
		if !have[id] {
			lost = append(lost, id)
		}
	}
	return lost
}

// metric reads one value from /metrics; a series that isn't there is 0.
func (i *instance) metric(t *testing.T, series string) float64 {
	t.Helper()
	response, err := http.Get(i.admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), series+" "); ok {
			number, err := strconv.ParseFloat(value, 64)
			if err != nil {
				t.Fatal(err)
			}
			return number
		}
	}
	if err := lines.Err(); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	return 0
}
