package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/url"
	"os"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/inboxd/inboxd/inbox"
	"github.com/inboxd/inboxd/providers"
)

type benchIngest struct {
	benchDatabase
	Connections int  `default:"128" help:"Connections, each with one request under way."`
	Messages    int  `default:"30000" help:"Messages of a run."`
	Size        int  `default:"1500" help:"Bytes of a body."`
	Rounds      int  `default:"5" help:"Rounds; each runs everything once, and the medians count."`
	Flushers    int  `default:"2" help:"Commits under way at once in the group commit."`
	Compare     bool `help:"Run, interleaved: group commit, a transaction for each request over pools of 10 and 64, and no database at all."`
	JSON        bool `help:"Print one JSON object."`

	CPUProfile string `placeholder:"FILE" help:"Write a CPU profile of the last group-commit gateway."`
}

// ingestRun is what one kind of run came to: medians over the rounds.
type ingestRun struct {
	Rate        float64 `json:"rate_per_s"`
	P50         float64 `json:"p50_ms"`
	P99         float64 `json:"p99_ms"`
	GatewayCPU  float64 `json:"gateway_cpu_s_per_1000"`
	PostgresCPU float64 `json:"postgres_cpu_s_per_1000"`
}

// The kinds of run. A transaction for each request is the same statement with one row: as many flushers as
// the pool has connections, each committing what it took.
var ingestKinds = []struct {
	name, text string
	flags      []string
}{
	{"group", "group commit", nil},
	{"single_10", "a transaction each, pool of 10", []string{"--flushers=10", "--batch-rows=1"}},
	{"single_64", "a transaction each, pool of 64", []string{"--flushers=64", "--batch-rows=1"}},
	{"null", "no database", []string{"--null"}},
}

func (cmd *benchIngest) Run(ctx context.Context, c *console) error {
	if cmd.Connections < 1 || cmd.Messages < cmd.Connections || cmd.Rounds < 1 || cmd.Size < minBenchBody {
		return fmt.Errorf("give at least 1 connection, a message for each, 1 round and %d bytes", minBenchBody)
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
	// Nobody listens there and no processor runs: the messages are routed and stay.
	if err := registerBench(ctx, conn, "http://127.0.0.1:9/", 10, true); err != nil {
		return err
	}

	// One run that doesn't count: the server's memory and WAL files are there afterwards.
	if _, err := cmd.runOnce(ctx, conn, databaseURL, nil); err != nil {
		return fmt.Errorf("warm up: %w", err)
	}
	samples := make(map[string][]ingestRun)
	for round := range cmd.Rounds {
		for _, kind := range ingestKinds {
			if kind.name != "group" && !cmd.Compare {
				continue
			}
			if err := emptyTables(ctx, conn); err != nil {
				return err
			}
			flags := kind.flags
			if kind.name == "group" {
				flags = []string{"--flushers=" + strconv.Itoa(cmd.Flushers), "--cpu-profile=" + cmd.CPUProfile}
			}
			run, err := cmd.runOnce(ctx, conn, databaseURL, flags)
			if err != nil {
				return fmt.Errorf("%s, round %d: %w", kind.name, round+1, err)
			}
			samples[kind.name] = append(samples[kind.name], run)
			fmt.Fprintf(c.err, "round %d  %-32s %8.0f/s  p50 %6.2f ms  p99 %6.2f ms\n", round+1, kind.text, run.Rate, run.P50, run.P99)
		}
	}
	return cmd.report(c.out, samples)
}

// runOnce starts a gateway and a load generator, and measures one against the other.
func (cmd *benchIngest) runOnce(ctx context.Context, conn *pgx.Conn, databaseURL string, flags []string) (ingestRun, error) {
	gateway, err := startChild(ctx, append([]string{"bench", "gateway", "--database-url=" + databaseURL}, flags...)...)
	if err != nil {
		return ingestRun{}, err
	}
	address, err := gateway.line()
	if err != nil {
		return ingestRun{}, err
	}
	before := serverCPU(ctx, conn)
	load, err := startChild(ctx, "bench", "load", "--to=http://"+address, "--database-url="+databaseURL,
		fmt.Sprintf("--connections=%d", cmd.Connections), fmt.Sprintf("--messages=%d", cmd.Messages), fmt.Sprintf("--size=%d", cmd.Size))
	if err != nil {
		_, _ = gateway.stop()
		return ingestRun{}, err
	}
	var report loadReport
	loadErr := load.readJSON(&report)
	gatewayCPU, err := gateway.stop()
	if err := errors.Join(loadErr, err); err != nil {
		return ingestRun{}, err
	}
	thousands := float64(report.Sent) / 1000
	return ingestRun{
		Rate: report.Rate, P50: report.P50, P99: report.P99,
		GatewayCPU:  gatewayCPU.Seconds() / thousands,
		PostgresCPU: (serverCPU(ctx, conn) - before).Seconds() / thousands,
	}, nil
}

// report prints the medians, and the ratios round by round's median: what shared a round shared the
// machine's mood.
func (cmd *benchIngest) report(out io.Writer, samples map[string][]ingestRun) error {
	runs := make(map[string]ingestRun)
	for name, all := range samples {
		pick := func(field func(ingestRun) float64) float64 {
			values := make([]float64, len(all))
			for i, run := range all {
				values[i] = field(run)
			}
			return median(values)
		}
		runs[name] = ingestRun{
			Rate: pick(func(r ingestRun) float64 { return r.Rate }), P50: pick(func(r ingestRun) float64 { return r.P50 }),
			P99: pick(func(r ingestRun) float64 { return r.P99 }), GatewayCPU: pick(func(r ingestRun) float64 { return r.GatewayCPU }),
			PostgresCPU: pick(func(r ingestRun) float64 { return r.PostgresCPU }),
		}
	}
	ratios := make(map[string]float64)
	if cmd.Compare {
		ratio := func(other func(round int) float64) float64 {
			values := make([]float64, cmd.Rounds)
			for i := range values {
				values[i] = samples["group"][i].Rate / other(i)
			}
			return median(values)
		}
		rate := func(name string) func(int) float64 { return func(i int) float64 { return samples[name][i].Rate } }
		ratios["group_single"] = ratio(func(i int) float64 {
			return math.Max(samples["single_10"][i].Rate, samples["single_64"][i].Rate)
		})
		ratios["group_single_10"] = ratio(rate("single_10"))
		ratios["group_single_64"] = ratio(rate("single_64"))
		ratios["group_null"] = ratio(rate("null"))
	}
	if cmd.JSON {
		return json.NewEncoder(out).Encode(map[string]any{"runs": runs, "ratios": ratios})
	}
	fmt.Fprintf(out, "%d messages of %d bytes, %d connections, medians of %d rounds\n", cmd.Messages, cmd.Size, cmd.Connections, cmd.Rounds)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "run\tmessages/s\tp50 ms\tp99 ms\tgateway CPU s/1000\tPostgreSQL CPU s/1000\t")
	for _, kind := range ingestKinds {
		if run, ok := runs[kind.name]; ok {
			fmt.Fprintf(table, "%s\t%.0f\t%.2f\t%.2f\t%.3f\t%.3f\t\n", kind.text, run.Rate, run.P50, run.P99, run.GatewayCPU, run.PostgresCPU)
		}
	}
	for _, name := range []string{"group_single", "group_single_10", "group_single_64", "group_null"} {
		if value, ok := ratios[name]; ok {
			fmt.Fprintf(table, "%s\t%.2f\t\t\t\t\t\n", name, value)
		}
	}
	return table.Flush()
}

// benchGateway is a gateway for a benchmark: the real one, with the store left out if asked.
type benchGateway struct {
	databaseFlags
	Roles     []string `default:"ingest"`
	Flushers  int      `default:"2"`
	BatchRows int      `default:"256"`
	Null      bool

	CPUProfile string
}

// nullStore commits nothing and says that it did.
type nullStore struct{ ids atomic.Int64 }

func (s *nullStore) Insert(_ context.Context, _ int64, batch []inbox.Message) ([]inbox.Stored, error) {
	stored := make([]inbox.Stored, len(batch))
	for i := range stored {
		stored[i].ID = s.ids.Add(1)
	}
	return stored, nil
}

func (cmd *benchGateway) Run(ctx context.Context, c *console) error {
	settings := defaultGatewayFlags()
	settings.Roles, settings.Flushers, settings.BatchRows = cmd.Roles, cmd.Flushers, cmd.BatchRows
	settings.Connections = cmd.Flushers + minConnections + 4
	settings.Listen, settings.AdminListen = "127.0.0.1:0", "127.0.0.1:0"
	settings.DrainDelay, settings.LogLevel = 0, "warn"
	cfg := gatewayConfig{DatabaseURL: cmd.DatabaseURL, Settings: settings, Log: newLogger(c.err, settings.LogLevel)}
	if cmd.Null {
		cfg.Store = &nullStore{}
	}
	g, err := newGateway(ctx, cfg)
	if err != nil {
		return err
	}
	address := g.admin.Addr()
	if g.public != nil {
		address = g.public.Addr()
	}
	fmt.Fprintln(c.out, address)
	if cmd.CPUProfile != "" {
		file, err := os.Create(cmd.CPUProfile)
		if err != nil {
			return err
		}
		defer file.Close()
		if err := pprof.StartCPUProfile(file); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	return g.run(ctx)
}

// benchLoad is the load generator: signed requests, made before the clock starts, over connections that each
// have one under way.
type benchLoad struct {
	databaseFlags
	To          string `required:""`
	Connections int    `required:""`
	Messages    int    `required:""`
	Size        int    `required:""`
}

type loadReport struct {
	Sent int     `json:"sent"`
	Rate float64 `json:"rate_per_s"`
	P50  float64 `json:"p50_ms"`
	P99  float64 `json:"p99_ms"`
}

func (cmd *benchLoad) Run(ctx context.Context, c *console) error {
	verifier, err := loadVerifier(ctx, cmd.DatabaseURL, &secretFlags{}, "bench")
	if err != nil {
		return err
	}
	target, err := url.Parse(cmd.To)
	if err != nil {
		return err
	}
	// A tenth more, unmeasured, comes first: connections, pools and caches fill.
	warmUp := min(2000, cmd.Messages/10)
	requests := make([][]byte, warmUp+cmd.Messages)
	for i := range requests {
		if requests[i], err = rawRequest(verifier, target.Host, benchBody(fmt.Sprintf("evt_%d_%d", time.Now().UnixNano(), i), cmd.Size)); err != nil {
			return err
		}
	}
	if _, err := shoot(ctx, target.Host, min(cmd.Connections, max(warmUp, 1)), requests[:warmUp], true); err != nil {
		return err
	}
	started := time.Now()
	latencies, err := shoot(ctx, target.Host, cmd.Connections, requests[warmUp:], false)
	if err != nil {
		return err
	}
	took := time.Since(started)
	slices.Sort(latencies)
	quantile := func(q float64) float64 {
		return float64(latencies[int(q*float64(len(latencies)-1))].Microseconds()) / 1000
	}
	return json.NewEncoder(c.out).Encode(loadReport{
		Sent: len(requests), Rate: float64(len(latencies)) / took.Seconds(), P50: quantile(.5), P99: quantile(.99),
	})
}

// minBenchBody is what benchBody needs for all but the padding.
const minBenchBody = 200

// benchBody makes a body of the size, as a payment provider would send it.
func benchBody(id string, size int) []byte {
	head := `{"id":"` + id + `","object":"event","type":"payment_intent.succeeded","created":1790000000,"livemode":false,"data":{"object":{"id":"pi_1","description":"`
	const tail = `"}}}`
	return []byte(head + strings.Repeat("x", max(0, size-len(head)-len(tail))) + tail)
}

// rawRequest signs a body and writes the request as it goes over the wire.
func rawRequest(verifier *providers.Verifier, host string, body []byte) ([]byte, error) {
	signed, err := verifier.Sign(providers.Draft{Path: "/in/bench", Body: body, Now: time.Now()})
	if err != nil {
		return nil, err
	}
	var raw bytes.Buffer
	fmt.Fprintf(&raw, "%s %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n", signed.Method, signed.Path, host, len(signed.Body))
	if err := signed.Header.Write(&raw); err != nil {
		return nil, err
	}
	raw.WriteString("\r\n")
	raw.Write(signed.Body)
	return raw.Bytes(), nil
}

// shoot sends the requests over so many connections and returns how long each took. Whoever is patient sends
// again what was answered 503: while a gateway opens all its database connections at once, on a busy machine,
// some may take too long.
func shoot(ctx context.Context, host string, connections int, requests [][]byte, patient bool) ([]time.Duration, error) {
	var (
		next      atomic.Int64
		wg        sync.WaitGroup
		latencies = make([]time.Duration, len(requests))
		errs      = make([]error, connections)
	)
	for i := range connections {
		wg.Go(func() {
			conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", host)
			if err != nil {
				errs[i] = err
				return
			}
			defer conn.Close()
			stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
			defer stop()
			reader := bufio.NewReader(conn)
			for {
				n := int(next.Add(1)) - 1
				if n >= len(requests) {
					return
				}
				started := time.Now()
				if _, err := conn.Write(requests[n]); err != nil {
					errs[i] = err
					return
				}
				status, err := readAnswer(reader)
				for patient && err == nil && status == 503 {
					if _, err = conn.Write(requests[n]); err == nil {
						status, err = readAnswer(reader)
					}
				}
				if err != nil || status != 200 {
					errs[i] = errors.Join(err, fmt.Errorf("request %d was answered %d", n, status))
					return
				}
				latencies[n] = time.Since(started)
			}
		})
	}
	wg.Wait()
	return latencies, errors.Join(errs...)
}

// readAnswer reads an HTTP/1.1 answer with a Content-Length and returns its status. It does no more than
// that: what the generator spends is missing to the gateway beside it.
func readAnswer(r *bufio.Reader) (status int, err error) {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return 0, err
	}
	if len(line) < len("HTTP/1.1 200") {
		return 0, fmt.Errorf("no HTTP answer: %q", line)
	}
	if status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return 0, err
	}
	length := 0
	for {
		if line, err = r.ReadSlice('\n'); err != nil {
			return status, err
		}
		if len(line) <= 2 {
			break
		}
		const name = "Content-Length: "
		if len(line) > len(name) && string(line[:len(name)]) == name {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(line[len(name):]))); err != nil {
				return status, err
			}
		}
	}
	_, err = r.Discard(length)
	return status, err
}
