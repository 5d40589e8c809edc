package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/inboxd/inboxd/inbox"
	"github.com/inboxd/inboxd/postgres"
)

type benchDeliver struct {
	benchDatabase
	Messages    int  `default:"50000" help:"The backlog."`
	Size        int  `default:"1500" help:"Bytes of a body."`
	Concurrency int  `default:"64" help:"The handler's concurrency."`
	Rounds      int  `default:"5" help:"Rounds; the medians count."`
	JSON        bool `help:"Print one JSON object."`

	CPUProfile string `placeholder:"FILE" help:"Write a CPU profile of the last gateway."`
}

type deliverRun struct {
	Rate        float64 `json:"rate_per_s"`
	GatewayCPU  float64 `json:"gateway_cpu_s_per_1000"`
	PostgresCPU float64 `json:"postgres_cpu_s_per_1000"`
}

func (cmd *benchDeliver) Run(ctx context.Context, c *console) error {
	if cmd.Messages < 1 || cmd.Rounds < 1 || cmd.Size < minBenchBody || cmd.Concurrency < 1 {
		return fmt.Errorf("give at least 1 message, 1 round, a concurrency of 1 and %d bytes", minBenchBody)
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
	var runs []deliverRun
	for round := range cmd.Rounds {
		run, err := cmd.runOnce(ctx, conn, databaseURL)
		if err != nil {
			return fmt.Errorf("round %d: %w", round+1, err)
		}
		runs = append(runs, run)
		fmt.Fprintf(c.err, "round %d  %8.0f/s\n", round+1, run.Rate)
	}
	pick := func(field func(deliverRun) float64) float64 {
		var values []float64
		for _, run := range runs {
			values = append(values, field(run))
		}
		return median(values)
	}
	result := deliverRun{
		Rate: pick(func(r deliverRun) float64 { return r.Rate }), GatewayCPU: pick(func(r deliverRun) float64 { return r.GatewayCPU }),
		PostgresCPU: pick(func(r deliverRun) float64 { return r.PostgresCPU }),
	}
	if cmd.JSON {
		return json.NewEncoder(c.out).Encode(map[string]any{"runs": map[string]any{"deliver": result}})
	}
	_, err = fmt.Fprintf(c.out, "%d deliveries of %d bytes, concurrency %d, median of %d rounds: %.0f/s, gateway CPU %.3f s/1000, PostgreSQL CPU %.3f s/1000\n",
		cmd.Messages, cmd.Size, cmd.Concurrency, cmd.Rounds, result.Rate, result.GatewayCPU, result.PostgresCPU)
	return err
}

// runOnce makes the backlog, starts sink and gateway, and measures from the first request at the sink to the
// last delivery's record.
func (cmd *benchDeliver) runOnce(ctx context.Context, conn *pgx.Conn, databaseURL string) (deliverRun, error) {
	if err := emptyTables(ctx, conn); err != nil {
		return deliverRun{}, err
	}
	sink, err := startChild(ctx, "bench", "sink", fmt.Sprintf("--messages=%d", cmd.Messages))
	if err != nil {
		return deliverRun{}, err
	}
	address, err := sink.line()
	if err != nil {
		return deliverRun{}, err
	}
	if err := registerBench(ctx, conn, "http://"+address+"/", cmd.Concurrency, false); err != nil {
		return deliverRun{}, err
	}
	if err := fillBacklog(ctx, databaseURL, cmd.Messages, cmd.Size); err != nil {
		return deliverRun{}, err
	}
	before := serverCPU(ctx, conn)
	gateway, err := startChild(ctx, "bench", "gateway", "--database-url="+databaseURL, "--roles=processor", "--cpu-profile="+cmd.CPUProfile)
	if err != nil {
		return deliverRun{}, err
	}
	var report sinkReport
	err = sink.readJSON(&report)
	if err == nil {
		err = awaitEmpty(ctx, conn)
	}
	took := time.Since(report.First)
	gatewayCPU, stopErr := gateway.stop()
	if err := errors.Join(err, stopErr); err != nil {
		return deliverRun{}, err
	}
	thousands := float64(cmd.Messages) / 1000
	return deliverRun{
		Rate: float64(cmd.Messages) / took.Seconds(), GatewayCPU: gatewayCPU.Seconds() / thousands,
		PostgresCPU: (serverCPU(ctx, conn) - before).Seconds() / thousands,
	}, nil
}

// awaitEmpty returns once every delivery is recorded.
func awaitEmpty(ctx context.Context, conn *pgx.Conn) error {
	for {
		var left bool
		if err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM delivery)`).Scan(&left); err != nil || !left {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// fillBacklog stores messages as ingest would.
func fillBacklog(ctx context.Context, databaseURL string, messages, size int) error {
	db, err := postgres.Open(ctx, databaseURL, 2)
	if err != nil {
		return err
	}
	defer db.Close()
	snapshots := db.Snapshots()
	if err := snapshots.Refresh(ctx); err != nil {
		return err
	}
	snapshot := snapshots.Current()
	source := snapshot.Source("bench")
	for made := 0; made < messages; {
		batch := make([]inbox.Message, min(256, messages-made))
		for i := range batch {
			id := fmt.Sprintf("evt_backlog_%d", made+i)
			body := benchBody(id, size)
			sum := sha256.Sum256(body)
			batch[i] = inbox.Message{
				SourceID: source.ID, MessageID: id, MessageType: "payment_intent.succeeded", ContentType: "application/json",
				Headers: []byte("User-Agent: bench\r\n"), Body: body, BodyHash: [16]byte(sum[:16]),
				Routes: snapshot.Route(source.Name, "payment_intent.succeeded"),
			}
		}
		if _, err := db.Insert(ctx, snapshot.Version, batch); err != nil {
			return err
		}
		made += len(batch)
	}
	return nil
}

// benchSink is a handler that reads what it gets, answers 200 and says when it has had enough.
type benchSink struct {
	Messages int64 `required:""`
}

type sinkReport struct {
	First time.Time `json:"first"`
}

func (cmd *benchSink) Run(ctx context.Context, c *console) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	var (
		got   atomic.Int64
		first atomic.Pointer[time.Time]
		all   = make(chan struct{})
	)
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		n := got.Add(1)
		if n == 1 {
			now := time.Now()
			first.Store(&now)
		}
		if n == cmd.Messages {
			close(all)
		}
	})}
	go func() { _ = server.Serve(listener) }()
	defer server.Close()
	fmt.Fprintln(c.out, listener.Addr())
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-all:
	}
	if err := json.NewEncoder(c.out).Encode(sinkReport{First: *first.Load()}); err != nil {
		return err
	}
	<-ctx.Done() // the last answers are still on their way
	return nil
}
