package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/inboxd/inboxd/inbox"
	"github.com/inboxd/inboxd/postgres"
)

type benchLists struct {
	benchDatabase
	Rows   int  `default:"10000000" help:"Messages to fill the database with."`
	Size   int  `default:"300" help:"Bytes of a body."`
	Rounds int  `default:"5" help:"How often each page is read."`
	Plans  int  `help:"Print the plans of so many requests, the slowest first."`
	JSON   bool `help:"Print one JSON object."`
}

// listsRun is what became of one request, over all rounds.
type listsRun struct {
	Name   string  `json:"name"`
	Median float64 `json:"median_ms"`
	Most   float64 `json:"max_ms"`
	Items  int     `json:"items"` // -1 for what is no list
	Next   bool    `json:"next"`  // the list goes on

	path string // of the request, with its cursor; empty for what is none of the API's
}

// The bars, in milliseconds. A figure beyond one is said, and no failure.
const (
	barPage   = 200
	barScrape = 100
	barReady  = 5000
)

func (cmd *benchLists) Run(ctx context.Context, c *console) error {
	if cmd.Rows < 1000 || cmd.Rounds < 1 || cmd.Size < 1 {
		return errors.New("give at least 1000 rows, 1 round and 1 byte")
	}
	if cmd.Plans > 0 {
		if cmd.DatabaseURL != "" || cmd.JSON {
			return errors.New("--plans reads the log of the private cluster and prints text; leave out --database-url and --json")
		}
		cmd.settings = planSettings
	}
	databaseURL, stop, err := cmd.open(ctx, c.err)
	if err != nil {
		return err
	}
	defer stop()
	started := time.Now()
	if err := cmd.fill(ctx, databaseURL, c.err); err != nil {
		return err
	}
	fmt.Fprintf(c.err, "filled with %d messages in %s\n", cmd.Rows, time.Since(started).Round(time.Second))
	db, err := postgres.Open(ctx, databaseURL, 1)
	if err != nil {
		return err
	}
	token, err := db.CreateToken(ctx, commandLine(), &inbox.OperatorToken{Name: fmt.Sprintf("bench %d", started.UnixNano()), Role: inbox.RoleAdmin, Scope: inbox.Everything()})
	some := ""
	if err == nil {
		some, err = db.CreateToken(ctx, commandLine(), &inbox.OperatorToken{
			Name: fmt.Sprintf("bench some %d", started.UnixNano()), Role: inbox.RoleAdmin,
			Scope: inbox.Scope{Sources: []string{"bench-[12]"}, Handlers: []string{"bench-[34]"}},
		})
	}
	db.Close()
	if err != nil {
		return err
	}

	began := time.Now()
	gateway, address, err := startAdmin(ctx, databaseURL)
	if err != nil {
		return err
	}
	runs, err := cmd.measure(ctx, address, token, some, began)
	_, stopErr := gateway.stop()
	if err := errors.Join(err, stopErr); err != nil {
		return err
	}
	if cmd.JSON {
		return json.NewEncoder(c.out).Encode(map[string]any{"rows": cmd.Rows, "runs": runs})
	}
	if err := printLists(c.out, cmd.Rows, cmd.Rounds, runs); err != nil || cmd.Plans == 0 {
		return err
	}
	return cmd.explain(ctx, c.out, databaseURL, token, runs)
}

// startAdmin starts a gateway that serves the API alone and returns its address.
func startAdmin(ctx context.Context, databaseURL string) (gateway *child, address string, err error) {
	if gateway, err = startChild(ctx, "bench", "gateway", "--database-url="+databaseURL, "--roles=admin"); err != nil {
		return nil, "", err
	}
	address, err = gateway.line()
	return gateway, address, err
}

// awaitReady waits until the gateway says that it is ready.
func awaitReady(ctx context.Context, address string) error {
	for {
		if _, _, err := getTimed(ctx, "http://"+address+"/readyz", ""); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func printLists(out io.Writer, rows, rounds int, runs []listsRun) error {
	fmt.Fprintf(out, "%d messages, %d rounds\n", rows, rounds)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "median ms\tmax ms\titems\tgoes on\t  \t\n")
	for _, run := range runs {
		bar, items, next := float64(barPage), "-", ""
		switch run.Name {
		case nameReady:
			bar = barReady
		case nameScrape:
			bar = barScrape
		}
		if run.Items >= 0 {
			items = fmt.Sprint(run.Items)
		}
		if run.Next {
			next = "yes"
		}
		mark := ""
		if run.Median > bar {
			mark = fmt.Sprintf("  (over %.0f ms)", bar)
		}
		fmt.Fprintf(table, "%.1f\t%.1f\t%s\t%s\t  %s%s\n", run.Median, run.Most, items, next, run.Name, mark)
	}
	return table.Flush()
}

// fillBatch is how many messages one statement makes.
const fillBatch = 50_000

// The rows go over seven days. Of 1000 messages 1 is UNROUTED, 5 PENDING, 1 FAILED, 1 parked, and one of 100,000
// was discarded; the others are DONE. One of 20 has failed once. Handlers and sources take turns, a business key has three
// messages, and so has an ordering key.
var fillStatements = []string{
	`
INSERT INTO inbox_message (id, received_at, source_id, message_id, message_type, event_time, biz_key, ordering_key, content_type, headers, body)
SELECT n, now() - interval '7 days' * (1 - n / @rows::float8), s.ids[1 + (n + n / 1000) % cardinality(s.ids)], 'evt_' || md5(n::text),
       CASE n % 7 WHEN 0 THEN 'refund.created' WHEN 1 THEN 'order.updated' ELSE 'payment.succeeded' END, NULL,
       'order ' || n / 3, 'cart ' || n / 3, 'application/json', 'User-Agent: bench', convert_to(repeat(md5(n::text), @size / 32 + 1), 'UTF8')
FROM generate_series(@first::bigint, @last::bigint) AS n,
     (SELECT array_agg(id ORDER BY id) AS ids FROM source) AS s`,
	`
INSERT INTO inbox_key (source_id, message_id, id, received_at, body_hash)
SELECT source_id, message_id, id, received_at, decode(md5(id::text), 'hex') FROM inbox_message WHERE id BETWEEN @first AND @last`,
	`
INSERT INTO delivery (id, handler_id, source_id, received_at, next_retry_time, max_retry_count, retry_count, status, claim_seq, last_error)
SELECT id, h.ids[1 + (id + id / 1000) % cardinality(h.ids)], source_id, received_at, received_at, 5, CASE WHEN id % 1000 = 6 THEN 1 ELSE 0 END,
       CASE id % 1000 WHEN 6 THEN 'FAILED' WHEN 7 THEN 'MANUAL_REQUIRED' ELSE 'PENDING' END, id, 'answered 500'
FROM inbox_message, (SELECT array_agg(id ORDER BY id) AS ids FROM handler) AS h
WHERE id BETWEEN @first AND @last AND id % 1000 BETWEEN 1 AND 7`,
	`
INSERT INTO outcome (id, handler_id, source_id, received_at, finished_at, claimed_at, claim_seq, attempts, max_retry_count, response_status, duration, result)
SELECT id, CASE WHEN id % 1000 > 0 THEN h.ids[1 + (id + id / 1000) % cardinality(h.ids)] END, source_id, received_at, received_at + interval '40 ms',
       received_at + interval '10 ms', id, 1, 5, 200, interval '30 ms',
       CASE WHEN id % 1000 = 0 THEN 'UNROUTED' WHEN id % 100000 = 8 THEN 'DISCARDED' ELSE 'DONE' END
FROM inbox_message, (SELECT array_agg(id ORDER BY id) AS ids FROM handler) AS h
WHERE id BETWEEN @first AND @last AND id % 1000 NOT BETWEEN 1 AND 7`,
	`
INSERT INTO attempt (id, handler_id, source_id, finished_at, claim_seq, claim_token, replay_no, retry_count, response_status, duration, class, error, response_body)
SELECT id, h.ids[1 + (id + id / 1000) % cardinality(h.ids)], source_id, received_at + interval '20 ms', id, gen_random_uuid(), 0, 0,
       CASE WHEN id % 40 = 6 THEN 500 ELSE 0 END, interval '10 ms', CASE WHEN id % 40 = 6 THEN 'status' ELSE 'timeout' END, 'no answer', 'oops'
FROM inbox_message, (SELECT array_agg(id ORDER BY id) AS ids FROM handler) AS h
WHERE id BETWEEN @first AND @last AND id % 20 = 6`,
}

// fill makes the rows inside the database, over two connections.
func (cmd *benchLists) fill(ctx context.Context, databaseURL string, log io.Writer) error {
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return fmt.Errorf("connect to the benchmark's database: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for _, statement := range []string{
		`TRUNCATE inbox_key, inbox_message, delivery, outcome, attempt`,
		`SELECT make_partition(t, (now() AT TIME ZONE 'UTC')::date + d)
FROM unnest(ARRAY ['inbox_message', 'outcome', 'attempt']) AS t, generate_series(-8, 14) AS d`,
		`INSERT INTO source (name, provider) SELECT 'bench-' || n, 'none' FROM generate_series(1, 5) AS n
ON CONFLICT (name) WHERE deleted_at IS NULL DO NOTHING`,
		`INSERT INTO handler (name, url, sources, message_types, secrets, concurrency, timeout, max_retry_count, backoff_base, backoff_cap, paused)
SELECT 'bench-' || n, 'http://127.0.0.1:9/', '{*}', '{*}', '{whsec_YmVuY2htYXJrYmVuY2htYXJr}', 10, '10 s', 5, '1 s', '1 min', n = 1
FROM generate_series(1, 4) AS n ON CONFLICT (name) WHERE deleted_at IS NULL DO NOTHING`,
	} {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("prepare the tables: %w", err)
		}
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(2)
	for first := 1; first <= cmd.Rows; first += fillBatch {
		group.Go(func() error {
			conn, err := pgx.Connect(groupCtx, databaseURL)
			if err != nil {
				return err
			}
			defer conn.Close(context.WithoutCancel(ctx))
			if _, err := conn.Exec(groupCtx, `SET synchronous_commit = off`); err != nil {
				return err
			}
			args := pgx.NamedArgs{"first": first, "last": min(first+fillBatch-1, cmd.Rows), "rows": cmd.Rows, "size": cmd.Size}
			for _, statement := range fillStatements {
				if _, err := conn.Exec(groupCtx, statement, args); err != nil {
					return fmt.Errorf("fill from %d on: %w", first, err)
				}
			}
			if (first-1)%(20*fillBatch) == 0 {
				fmt.Fprintf(log, "filling: %d of %d\n", first-1, cmd.Rows)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for _, statement := range []string{`SELECT setval('inbox_message_id', (SELECT max(id) FROM inbox_message))`, `VACUUM ANALYZE`, `CHECKPOINT`} {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("settle the tables: %w", err)
		}
	}
	return nil
}

const (
	nameReady  = "start until /readyz"
	nameScrape = "/metrics"
)

// measure waits until the gateway is ready and reads everything, and then the lists that heed scopes with a token for
// some sources and handlers.
func (cmd *benchLists) measure(ctx context.Context, address, token, some string, began time.Time) ([]listsRun, error) {
	base := "http://" + address
	if err := awaitReady(ctx, address); err != nil {
		return nil, err
	}
	ready := milliseconds(time.Since(began))
	runs := []listsRun{{Name: nameReady, Median: ready, Most: ready, Items: -1}}

	now := time.Now().UTC()
	at := func(ago time.Duration) string { return url.QueryEscape(now.Add(-ago).Format(time.RFC3339)) }
	middle := cmd.Rows / 2
	var paths []string
	for _, filter := range []string{
		"", "status=DONE", "status=PENDING", "status=FAILED", "status=MANUAL_REQUIRED", "status=PROCESSING", "status=WAITING", "status=DISCARDED",
		"source=bench-2", "handler=bench-3", "handler=bench-3&status=MANUAL_REQUIRED", "message_type=refund.created", "message_type=nothing",
		fmt.Sprintf("message_id=nothing-%d", middle), fmt.Sprintf("biz_key=order+%d", middle/3), fmt.Sprintf("ordering_key=cart+%d", middle/3),
		"from=" + at(time.Hour), "to=" + at(6*24*time.Hour), "from=" + at(3*24*time.Hour) + "&to=" + at(2*24*time.Hour),
	} {
		paths = append(paths, "/messages?"+filter, "/deliveries?"+filter)
	}
	paths = append(paths, "/messages?status=UNROUTED", "/messages?status=DUPLICATE",
		"/deliveries?error_class=status", "/deliveries?error_class=tls", "/deliveries?response_status=500", "/deliveries?response_status=200",
		"/deliveries?handler=bench-2&error_class=timeout")
	for _, filter := range []string{"", "source=bench-2", "handler=bench-3", "response_status=500", fmt.Sprintf("message=%d", middle), "from=" + at(time.Hour), "to=" + at(6*24*time.Hour)} {
		paths = append(paths, "/attempts?"+filter, "/outcomes?"+filter)
	}
	paths = append(paths, "/attempts?error_class=timeout", "/attempts?error_class=tls", "/outcomes?result=UNROUTED", "/outcomes?result=DISCARDED",
		fmt.Sprintf("/lookup?key=order+%d", middle/3), fmt.Sprintf("/messages/%d", middle), fmt.Sprintf("/messages/%d/timeline", middle),
		"/stats", "/stats?minutes=60", "/system")
	for _, path := range paths {
		more, err := cmd.measureList(ctx, base, path, token)
		if err != nil {
			return nil, err
		}
		runs = append(runs, more...)
	}
	for _, path := range []string{
		"/messages?", "/messages?status=MANUAL_REQUIRED", "/messages?status=PENDING", "/messages?status=UNROUTED", "/messages?status=DISCARDED", "/messages?message_type=nothing",
		"/deliveries?", "/deliveries?status=MANUAL_REQUIRED", "/deliveries?error_class=timeout", "/attempts?", "/outcomes?", "/audit?",
		fmt.Sprintf("/lookup?key=order+%d", middle/3), "/stats",
	} {
		more, err := cmd.measureList(ctx, base, path, some)
		if err != nil {
			return nil, err
		}
		for _, run := range more {
			run.Name, run.path = run.Name+" (for some)", "" // its plan would be that of the other token
			runs = append(runs, run)
		}
	}
	run, _, err := cmd.measureOne(ctx, nameScrape, base+nameScrape, "")
	return append(runs, run), err
}

// depths are the pages that are measured: the first, and further ones by the cursor.
var depths = []int{1, 10}

// measureList reads a list at each depth that it has; what is no list has one.
func (cmd *benchLists) measureList(ctx context.Context, base, path, token string) (runs []listsRun, err error) {
	next := "/api/v1" + path
	for page := 1; page <= slices.Max(depths); page++ {
		var list struct {
			Items []json.RawMessage
			Next  string
		}
		if !slices.Contains(depths, page) {
			_, text, err := getTimed(ctx, base+next, token)
			if err != nil {
				return nil, err
			}
			if err := json.Unmarshal(text, &list); err != nil {
				return nil, err
			}
		} else {
			name := path
			if page > 1 {
				name = fmt.Sprintf("%s, page %d", path, page)
			}
			run, text, err := cmd.measureOne(ctx, name, base+next, token)
			if err != nil {
				return nil, err
			}
			if err := json.Unmarshal(text, &list); err != nil {
				return nil, err
			}
			run.path = next
			if run.Items, run.Next = len(list.Items), list.Next != ""; list.Items == nil {
				run.Items = -1
			}
			runs = append(runs, run)
		}
		if list.Next == "" {
			break
		}
		next = "/api/v1" + path + "&cursor=" + url.QueryEscape(list.Next)
	}
	return runs, nil
}

func (cmd *benchLists) measureOne(ctx context.Context, name, address, token string) (run listsRun, text []byte, err error) {
	var times []float64
	for range cmd.Rounds {
		var took time.Duration
		if took, text, err = getTimed(ctx, address, token); err != nil {
			return run, nil, err
		}
		times = append(times, milliseconds(took))
	}
	return listsRun{Name: name, Median: median(times), Most: slices.Max(times), Items: -1}, text, nil
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// getTimed reads an address to its end.
func getTimed(ctx context.Context, address, token string) (took time.Duration, text []byte, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return 0, nil, err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	started := time.Now()
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	text, err = io.ReadAll(response.Body)
	took = time.Since(started)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s: %s", address, response.Status, text)
	}
	return took, text, err
}
