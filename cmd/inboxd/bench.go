package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/inboxd/inboxd/internal/devpg"
	"github.com/inboxd/inboxd/postgres"
)

// benchCommand holds the benchmarks and, hidden, the processes that they start. Load generator, gateway and
// sink are processes of their own, so that each can be accounted for and none shares the other's scheduler.
type benchCommand struct {
	Ingest  benchIngest  `cmd:"" help:"Signed requests over loopback until they are committed."`
	Deliver benchDeliver `cmd:"" help:"Drain a backlog to a local sink over signed HTTP."`
	Lists   benchLists   `cmd:"" help:"Read every list of the operators' API beside many rows."`
	Replay  benchReplay  `cmd:"" help:"Latency of live messages without and beside a job that retries what is parked at their handler."`

	Load    benchLoad    `cmd:"" hidden:""`
	Gateway benchGateway `cmd:"" hidden:""`
	Sink    benchSink    `cmd:"" hidden:""`
}

// benchDatabase is the database of a benchmark.
type benchDatabase struct {
	DatabaseURL string        `placeholder:"URL" help:"An empty database to measure on; without it a private cluster is made for the run and removed."`
	CommitDelay time.Duration `help:"Let the private cluster take so much longer for each commit, as a cloud disk does."`

	settings map[string]string // of the private cluster, beside those of every benchmark
}

// open makes the database ready and returns its URL and what closes it.
func (b *benchDatabase) open(ctx context.Context, log io.Writer) (url string, stop func(), err error) {
	if b.DatabaseURL != "" {
		if b.CommitDelay > 0 {
			return "", nil, errors.New("--commit-delay is for the private cluster; leave out --database-url")
		}
		return b.DatabaseURL, func() {}, postgres.Migrate(ctx, b.DatabaseURL)
	}
	dir, err := os.MkdirTemp("", "inboxd-bench-")
	if err != nil {
		return "", nil, err
	}
	settings := map[string]string{
		// A server that has run for a while: it uses its WAL files again, and no checkpoint falls into one run alone.
		"max_wal_size": "8GB", "min_wal_size": "4GB", "checkpoint_timeout": "30min", "shared_buffers": "256MB", "jit": "off",
	}
	maps.Copy(settings, b.settings)
	if b.CommitDelay > 0 {
		settings["commit_delay"] = strconv.FormatInt(b.CommitDelay.Microseconds(), 10)
		settings["commit_siblings"] = "0"
	}
	// MkdirTemp's folder is closed to the user that PostgreSQL drops to.
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", nil, err
	}
	url, stopCluster, err := devpg.Ensure(ctx, devpg.Options{
		Dir: filepath.Join(dir, "postgres"), Settings: settings,
		Log: func(line string) { fmt.Fprintln(log, line) },
	})
	if err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	stop = func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		if err := errors.Join(stopCluster(ctx), os.RemoveAll(dir)); err != nil {
			fmt.Fprintln(log, "inboxd: stop the benchmark's cluster:", err)
		}
	}
	if err := postgres.Migrate(ctx, url); err != nil {
		stop()
		return "", nil, err
	}
	return url, stop, nil
}

// benchSecret signs the benchmarks' requests. It protects nothing.
const benchSecret = "whsec_bench"

// registerBench makes the benchmarks' source, and a handler that takes everything from it.
func registerBench(ctx context.Context, conn *pgx.Conn, handlerURL string, concurrency int, paused bool) error {
	_, err := conn.Exec(ctx, `
INSERT INTO source (name, provider, secrets) VALUES ('bench', 'stripe', ARRAY [$1])
ON CONFLICT (name) WHERE deleted_at IS NULL DO NOTHING`, benchSecret)
	if err != nil {
		return fmt.Errorf("register the source: %w", err)
	}
	_, err = conn.Exec(ctx, `
INSERT INTO handler (name, url, sources, message_types, secrets, concurrency, timeout, max_retry_count, backoff_base, backoff_cap, paused)
VALUES ('bench', $1, '{bench}', '{*}', '{whsec_YmVuY2htYXJrYmVuY2htYXJr}', $2, '10 s', 5, '1 s', '1 min', $3)
ON CONFLICT (name) WHERE deleted_at IS NULL DO UPDATE SET url = excluded.url, concurrency = excluded.concurrency, paused = excluded.paused`,
		handlerURL, concurrency, paused)
	if err != nil {
		return fmt.Errorf("register the handler: %w", err)
	}
	return nil
}

// emptyTables makes each run start from the same state.
func emptyTables(ctx context.Context, conn *pgx.Conn) error {
	for _, statement := range []string{
		`TRUNCATE inbox_key, inbox_message, delivery, outcome, attempt`, `CHECKPOINT`,
	} {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("empty the tables: %w", err)
		}
	}
	return nil
}

// child is a process of this program.
type child struct {
	cmd    *exec.Cmd
	stdout *bufio.Reader
	stderr bytes.Buffer
}

// startChild starts this program with other arguments.
func startChild(ctx context.Context, args ...string) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &child{cmd: exec.CommandContext(ctx, self, args...)}
	c.cmd.Cancel = func() error { return c.cmd.Process.Signal(syscall.SIGTERM) }
	c.cmd.WaitDelay = 10 * time.Second
	c.cmd.Stderr = &c.stderr
	pipe, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.stdout = bufio.NewReader(pipe)
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", args[0], err)
	}
	return c, nil
}

// line returns the next line of its output.
func (c *child) line() (string, error) {
	line, err := c.stdout.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("the child ended early: %w: %s", errors.Join(err, c.cmd.Wait()), c.stderr.String())
	}
	return strings.TrimSpace(line), nil
}

// stop ends the process in order and returns the CPU time that it took.
func (c *child) stop() (time.Duration, error) {
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	_, _ = io.Copy(io.Discard, c.stdout)
	if err := c.cmd.Wait(); err != nil {
		return 0, fmt.Errorf("stop the child: %w: %s", err, c.stderr.String())
	}
	return c.cmd.ProcessState.SystemTime() + c.cmd.ProcessState.UserTime(), nil
}

// readJSON reads the child's one line of JSON and waits for its end.
func (c *child) readJSON(v any) error {
	line, err := c.line()
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(line), v); err != nil {
		return fmt.Errorf("read the child's report: %w", err)
	}
	_, err = c.stop()
	return err
}

// serverCPU returns the CPU time of all processes of the PostgreSQL server that conn leads to, those that
// have ended included. It knows only Linux and servers on this machine; elsewhere it returns 0.
func serverCPU(ctx context.Context, conn *pgx.Conn) time.Duration {
	var backend int
	if runtime.GOOS != "linux" || conn.QueryRow(ctx, `SELECT pg_backend_pid()`).Scan(&backend) != nil {
		return 0
	}
	postmaster, _, ok := processStat(backend)
	if !ok {
		return 0
	}
	_, total, _ := processStat(postmaster)
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if parent, cpu, ok := processStat(pid); ok && parent == postmaster {
			total += cpu
		}
	}
	return total
}

// processStat reads a process's parent and its CPU time with that of its ended children (proc(5), fields 4
// and 14 to 17).
func processStat(pid int) (parent int, cpu time.Duration, ok bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, false
	}
	_, rest, found := strings.Cut(string(text), ") ") // the name may hold anything but ends here
	fields := strings.Fields(rest)
	if !found || len(fields) < 15 || !strings.Contains(string(text), "(postgres") {
		return 0, 0, false
	}
	parent, err = strconv.Atoi(fields[1])
	if err != nil {
		return 0, 0, false
	}
	const ticksPerSecond = 100
	for _, field := range fields[11:15] {
		ticks, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, 0, false
		}
		cpu += time.Duration(ticks) * time.Second / ticksPerSecond
	}
	return parent, cpu, true
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	if len(sorted) == 0 {
		return 0
	}
	if n := len(sorted); n%2 == 0 {
		return (sorted[n/2-1] + sorted[n/2]) / 2
	}
	return sorted[len(sorted)/2]
}
