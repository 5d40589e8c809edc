package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/inboxd/inboxd/inbox"
	"github.com/inboxd/inboxd/postgres"
	"github.com/inboxd/inboxd/providers"
)

type benchReplay struct {
	benchDatabase
	Parked      int           `default:"50000" help:"Deliveries that are parked at the handler that live messages go to."`
	Rate        int           `default:"100" help:"Live messages per second."`
	Pace        int           `help:"Of the job, deliveries per second; 0 is no limit."`
	Duration    time.Duration `default:"5s" help:"How long live messages are measured at a time."`
	Work        time.Duration `default:"5ms" help:"How long the handler takes."`
	Concurrency int           `default:"20" help:"The handler's concurrency."`
	Size        int           `default:"1500" help:"Bytes of a body."`
	Rounds      int           `default:"6" help:"Rounds; each measures without the job and beside it."`
	JSON        bool          `help:"Print one JSON object."`
}

// replayRun is what became of live messages, from when they were due to be sent until they were at the handler.
type replayRun struct {
	Alone  quantiles `json:"alone"`
	Beside quantiles `json:"beside"`
	Ratio  float64   `json:"p95_ratio"`
	Job    float64   `json:"job_per_s"`
}

type quantiles struct {
	P50 float64 `json:"p50_ms"`
	P95 float64 `json:"p95_ms"`
	P99 float64 `json:"p99_ms"`
}

// barReplay is how much longer live messages may take beside a job, at p95. A figure beyond it is said, and no failure.
const barReplay = 2

func (cmd *benchReplay) Run(ctx context.Context, c *console) error {
	if cmd.Parked < 1 || cmd.Rate < 1 || cmd.Rounds < 1 || cmd.Size < minBenchBody || cmd.Concurrency < 1 || cmd.Duration <= 0 {
		return fmt.Errorf("give at least 1 parked delivery, 1 message per second, 1 round, a concurrency of 1, a duration and %d bytes", minBenchBody)
	}
	databaseURL, stop, err := cmd.open(ctx, c.err)
	if err != nil {
		return err
	}
	defer stop()
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return fmt.Errorf("connect to the benchmark's database: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	result, err := cmd.measure(ctx, conn, databaseURL, c.err)
	if err != nil {
		return err
	}
	if cmd.JSON {
		return json.NewEncoder(c.out).Encode(map[string]any{"runs": map[string]any{"replay": result}})
	}
	return cmd.report(c.out, result)
}

func (cmd *benchReplay) report(out io.Writer, run replayRun) error {
	fmt.Fprintf(out, "%d live messages a second, a handler that takes %s with concurrency %d, %d rounds of %s each\n",
		cmd.Rate, cmd.Work, cmd.Concurrency, cmd.Rounds, cmd.Duration)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "live messages\tp50 ms\tp95 ms\tp99 ms\t")
	fmt.Fprintf(table, "alone\t%.1f\t%.1f\t%.1f\t\n", run.Alone.P50, run.Alone.P95, run.Alone.P99)
	fmt.Fprintf(table, "beside a retry of %.0f/s\t%.1f\t%.1f\t%.1f\t\n", run.Job, run.Beside.P50, run.Beside.P95, run.Beside.P99)
	if err := table.Flush(); err != nil {
		return err
	}
	word := "holds"
	if run.Ratio > barReplay {
		word = "BEYOND"
	}
	_, err := fmt.Fprintf(out, "p95 beside against alone: %.2f; at most %d: %s\n", run.Ratio, barReplay, word)
	return err
}

// measure parks deliveries, starts a gateway, and measures live messages without and beside a job that retries what is
// parked, in turn: so both share the machine's mood.
func (cmd *benchReplay) measure(ctx context.Context, conn *pgx.Conn, databaseURL string, log io.Writer) (run replayRun, err error) {
	sink, err := startReplaySink(cmd.Work)
	if err != nil {
		return run, err
	}
	defer sink.server.Close()
	if err := cmd.park(ctx, conn, databaseURL, sink.url); err != nil {
		return run, err
	}
	verifier, err := loadVerifier(ctx, databaseURL, &secretFlags{}, "bench")
	if err != nil {
		return run, err
	}
	db, err := postgres.Open(ctx, databaseURL, 1)
	if err != nil {
		return run, err
	}
	defer db.Close()
	gateway, err := startChild(ctx, "bench", "gateway", "--database-url="+databaseURL, "--roles=ingest,processor")
	if err != nil {
		return run, err
	}
	defer func() {
		_, stopErr := gateway.stop()
		err = errors.Join(err, stopErr)
	}()
	address, err := gateway.line()
	if err != nil {
		return run, err
	}
	if err := awaitReady(ctx, address); err != nil {
		return run, err
	}
	live := liveLoad{to: "http://" + address, rate: cmd.Rate, size: cmd.Size, verifier: verifier, sink: sink}
	// Unmeasured: connections, pools and caches fill.
	if _, err := live.run(ctx, min(cmd.Duration, 2*time.Second)); err != nil {
		return run, err
	}
	var alone, beside []time.Duration
	var moved, seconds float64
	for round := range cmd.Rounds {
		without, err := live.run(ctx, cmd.Duration)
		if err != nil {
			return run, err
		}
		job, err := startRetry(ctx, db, cmd.Pace)
		if err != nil {
			return run, err
		}
		started := time.Now()
		with, err := live.run(ctx, cmd.Duration)
		if err != nil {
			return run, err
		}
		took := time.Since(started).Seconds()
		ended, err := db.CancelJob(ctx, commandLine(), job.ID)
		if errors.Is(err, inbox.ErrConflict) {
			err = errors.New("the job was done before the measurement: give more --parked, fewer --rounds or a shorter --duration")
		}
		if err != nil {
			return run, err
		}
		moved, seconds = moved+float64(ended.Moved), seconds+took
		alone, beside = append(alone, without...), append(beside, with...)
		fmt.Fprintf(log, "round %d  p95 %.1f ms alone, %.1f ms beside a job of %.0f/s\n", round+1,
			quantilesOf(without).P95, quantilesOf(with).P95, float64(ended.Moved)/took)
	}
	run = replayRun{Alone: quantilesOf(alone), Beside: quantilesOf(beside), Job: moved / seconds}
	run.Ratio = run.Beside.P95 / run.Alone.P95
	return run, nil
}

// park leaves messages at the handler, parked.
func (cmd *benchReplay) park(ctx context.Context, conn *pgx.Conn, databaseURL, handlerURL string) error {
	if err := emptyTables(ctx, conn); err != nil {
		return err
	}
	if err := registerBench(ctx, conn, handlerURL, cmd.Concurrency, false); err != nil {
		return err
	}
	if err := fillBacklog(ctx, databaseURL, cmd.Parked, cmd.Size); err != nil {
		return err
	}
	for _, statement := range []string{`UPDATE delivery SET status = 'MANUAL_REQUIRED'`, `VACUUM ANALYZE delivery`} {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("park: %w", err)
		}
	}
	return nil
}

// startRetry makes a job that retries what is parked.
func startRetry(ctx context.Context, db *postgres.DB, pace int) (*inbox.Job, error) {
	handler, err := db.HandlerNamed(ctx, "bench")
	if err != nil {
		return nil, err
	}
	job := &inbox.Job{
		Action: inbox.JobRetry, Filter: inbox.Filter{Status: inbox.ManualRequired, HandlerID: handler}, Handler: "bench", Pace: pace,
	}
	return job, db.CreateJob(ctx, commandLine(), job)
}

func quantilesOf(latencies []time.Duration) quantiles {
	sorted := slices.Sorted(slices.Values(latencies))
	at := func(q float64) float64 {
		return float64(sorted[int(q*float64(len(sorted)-1))].Microseconds()) / 1000
	}
	return quantiles{at(.5), at(.95), at(.99)}
}

// liveLoad sends messages at a rate, whether the last ones are answered or not.
type liveLoad struct {
	to         string
	rate, size int
	verifier   *providers.Verifier
	sink       *replaySink
}

func (l liveLoad) run(ctx context.Context, duration time.Duration) ([]time.Duration, error) {
	count := max(1, int(duration.Seconds()*float64(l.rate)))
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		wrong error
	)
	prefix := fmt.Sprintf("evt_live_%d_", time.Now().UnixNano())
	due := make([]time.Time, count)
	began := time.Now()
	for n := range count {
		due[n] = began.Add(time.Duration(n) * time.Second / time.Duration(l.rate))
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Until(due[n])):
		}
		wg.Go(func() {
			answer, err := sendSigned(ctx, l.verifier, l.to, providers.Draft{Path: "/in/bench", Body: benchBody(fmt.Sprint(prefix, n), l.size), Now: time.Now()})
			if err == nil && !answer.asExpected(false) {
				err = fmt.Errorf("a live message was answered %d", answer.status)
			}
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				wrong = err
			}
		})
	}
	wg.Wait()
	if wrong != nil {
		return nil, wrong
	}
	latencies := make([]time.Duration, count)
	for n := range count {
		arrived, err := l.sink.await(ctx, fmt.Sprint(prefix, n))
		if err != nil {
			return nil, err
		}
		latencies[n] = arrived.Sub(due[n])
	}
	return latencies, nil
}

// replaySink is a handler that takes its time, and knows when each message was first there.
type replaySink struct {
	url    string
	server *http.Server

	mu      sync.Mutex
	arrived map[string]time.Time
	more    chan struct{} // closed and made anew when something arrives
}

func startReplaySink(work time.Duration) (*replaySink, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start the sink: %w", err)
	}
	s := &replaySink{url: "http://" + listener.Addr().String() + "/", arrived: make(map[string]time.Time), more: make(chan struct{})}
	s.server = &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		id, now := r.Header.Get("Inbox-Message-Id"), time.Now()
		s.mu.Lock()
		if _, ok := s.arrived[id]; !ok {
			s.arrived[id] = now
			close(s.more)
			s.more = make(chan struct{})
		}
		s.mu.Unlock()
		_, _ = io.Copy(io.Discard, r.Body)
		time.Sleep(work)
	})}
	go func() { _ = s.server.Serve(listener) }()
	return s, nil
}

// await returns when the message arrived, which it may not have done yet.
func (s *replaySink) await(ctx context.Context, id string) (time.Time, error) {
	for {
		s.mu.Lock()
		at, ok := s.arrived[id]
		more := s.more
		s.mu.Unlock()
		if ok {
			return at, nil
		}
		select {
		case <-ctx.Done():
			return at, ctx.Err()
		case <-more:
		}
	}
}
