package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/inboxd/inboxd/client"
)

// makeJob creates a job and returns its number.
func makeJob(t *testing.T, i *instance, body map[string]any) string {
	t.Helper()
	var job client.Job
	i.call(t, http.MethodPost, "/jobs", body, &job)
	return job.ID
}

func readJob(t *testing.T, i *instance, id string) client.Job {
	t.Helper()
	var job client.Job
	i.call(t, http.MethodGet, "/jobs/"+id, nil, &job)
	return job
}

// parkMany stores so many messages of the one source as if they were parked at the one handler.
func (w *world) parkMany(t *testing.T, n int) {
	t.Helper()
	w.exec(t, `
WITH message AS (
    INSERT INTO inbox_message (id, received_at, source_id, message_id, message_type, content_type, headers, body)
    SELECT nextval('inbox_message_id'), now(), (SELECT id FROM source), 'm' || n, 'paid', '', '', '{}' FROM generate_series(1, $1) AS n
    RETURNING id, received_at, source_id, message_id
), key AS (
    INSERT INTO inbox_key (source_id, message_id, id, received_at, body_hash) SELECT source_id, message_id, id, received_at, '' FROM message
)
INSERT INTO delivery (id, handler_id, source_id, received_at, next_retry_time, claim_seq, max_retry_count, status)
SELECT id, (SELECT id FROM handler), source_id, received_at, 'infinity', nextval('claim_fence'), 5, 'MANUAL_REQUIRED' FROM message`, n)
	w.exec(t, `ANALYZE delivery, inbox_message`)
}

// TestJobOutlivesItsProcess kills the process in the middle of a job. The next one goes on from the row, and
// every delivery is moved once.
func TestJobOutlivesItsProcess(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	addresses := freeAddresses(t, 2)
	p := w.startProcess(t, addresses[0], addresses[1])
	registerShop(t, &p.instance)
	registerHandler(t, &p.instance, "books", "http://127.0.0.1:1", map[string]any{"paused": true})
	const parked = 50_000
	w.parkMany(t, parked)

	retry := map[string]any{"action": "retry", "filter": map[string]any{"handler": "books"}, "reason": "the kill test", "dry_run": true}
	var plan client.JobPlan
	p.call(t, http.MethodPost, "/jobs", retry, &plan)
	if plan.Deliveries != parked || plan.AtLeast != nil {
		t.Errorf("the plan is %+v, want %d", plan, parked)
	}
	retry["dry_run"] = false
	id := makeJob(t, &p.instance, retry)
	eventually(t, time.Minute, "the job is at work", func() bool { return w.count(t, `SELECT moved FROM job`) >= 5000 })
	p.kill()
	var moved, linked, pending int
	eventually(t, 30*time.Second, "the server knows that the process is gone", func() bool {
		return w.count(t, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'inboxd'`) == 0
	})
	moved, linked = w.count(t, `SELECT moved FROM job`), w.count(t, `SELECT count(*) FROM job_delivery`)
	pending = w.count(t, `SELECT count(*) FROM delivery WHERE status = 'PENDING'`)
	if moved != linked || moved != pending || moved < 5000 || moved >= parked {
		t.Fatalf("after the kill: %d moved, %d linked, %d PENDING; want three times one number in the middle", moved, linked, pending)
	}
	t.Logf("killed after %d of %d", moved, parked)

	w.exec(t, `UPDATE leader SET expires_at = '-infinity'`) // the next one need not wait
	p = w.startProcess(t, addresses[0], addresses[1])
	var seen []float64
	eventually(t, 2*time.Minute, "the job is done", func() bool {
		job := readJob(t, &p.instance, id)
		seen = append(seen, job.Progress)
		return job.Status == client.JobDone
	})
	job := readJob(t, &p.instance, id)
	if job.Selected != parked || job.Moved != parked || job.Skipped != 0 || job.Progress != 1 || job.Error != nil {
		t.Errorf("the job is %+v, want %d moved", job, parked)
	}
	if !slices.IsSorted(seen) || seen[0] < float64(moved)/parked/2 {
		t.Errorf("its progress went back: %v", seen)
	}
	for sql, want := range map[string]int{
		`SELECT count(*) FROM delivery WHERE status = 'PENDING' AND retry_count = 0 AND next_retry_time <= now()`: parked,
		`SELECT count(*) FROM delivery WHERE status <> 'PENDING'`:                                                 0,
		`SELECT count(*) FROM job_delivery`:                                                                       parked,
		`SELECT count(DISTINCT id) FROM job_delivery`:                                                             parked,
		`SELECT count(*) FROM audit WHERE action = 'delivery.retry' AND job_id = 1 AND reason = 'the kill test'`:  parked,
		`SELECT count(DISTINCT message) FROM audit WHERE action = 'delivery.retry'`:                               parked,
		`SELECT count(*) FROM job_delivery AS j JOIN delivery AS d USING (id, handler_id, claim_seq, replay_no)`:  parked,
		`SELECT count(*) FROM audit WHERE action = 'job.create'`:                                                  1,
	} {
		if n := w.count(t, sql); n != want {
			t.Errorf("%s = %d, want %d", sql, n, want)
		}
	}
	w.checkClean(t)
}

// TestReplayByFilter [C8]: what is DONE really runs again at the receiver, who is told that it is a replay.
func TestReplayByFilter(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var mu sync.Mutex
	got := map[string][]string{} // the replays of each id, in order
	handler := newDownstream(t, func(_ http.ResponseWriter, r *http.Request, _ []byte) {
		mu.Lock()
		defer mu.Unlock()
		id := r.Header.Get("Inbox-Message-Id")
		got[id] = append(got[id], r.Header.Get("Webhook-Id")+" "+r.Header.Get("Inbox-Replay"))
	})
	i := w.start(t)
	registerShop(t, i)
	registerHandler(t, i, "books", handler.URL, nil)
	for n := range 30 {
		if status, _, err := postShop(t.Context(), http.DefaultClient, i.public, fmt.Sprint("m-", n), []byte("{}")); status != http.StatusOK {
			t.Fatal(status, err)
		}
	}
	done := func() int { return w.count(t, `SELECT count(*) FROM outcome WHERE result = 'DONE'`) }
	eventually(t, 20*time.Second, "all are DONE", func() bool { return done() == 30 })
	id := makeJob(t, i, map[string]any{"action": "replay", "filter": map[string]any{"handler": "books", "status": "DONE", "message_type": "paid"}})
	eventually(t, 20*time.Second, "all are DONE again", func() bool { return done() == 60 })
	eventually(t, 20*time.Second, "the job is done", func() bool { return readJob(t, i, id).Status == client.JobDone })
	if job := readJob(t, i, id); job.Moved != 30 || job.Skipped != 0 {
		t.Errorf("the job is %+v", job)
	}
	eventually(t, 5*time.Second, "the metric has them", func() bool {
		return i.metric(t, `inboxd_job_deliveries_total{action="replay",result="moved"}`) == 30
	})
	mu.Lock()
	defer mu.Unlock()
	for n := range 30 {
		calls := got[fmt.Sprint("m-", n)]
		var first, second string
		if len(calls) == 2 {
			first, second = calls[0], calls[1]
		}
		if len(first) < 2 || first[len(first)-2:] != " 0" || second != first[:len(first)-1]+"1" {
			t.Errorf("m-%d was delivered as %q, want one id, first as no replay and then as replay 1", n, calls)
		}
	}
	w.checkClean(t)
}

// TestJobCommands works with many deliveries as an operator does.
func TestJobCommands(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.start(t)
	registerShop(t, i)
	registerHandler(t, i, "books", "http://127.0.0.1:1", map[string]any{"paused": true})
	const messages = 60
	for n := range messages {
		if status, _, err := postShop(t.Context(), http.DefaultClient, i.public, fmt.Sprint("m-", n), []byte("{}")); status != http.StatusOK {
			t.Fatal(status, err)
		}
	}
	park := func() {
		w.exec(t, `UPDATE delivery SET status = 'MANUAL_REQUIRED', next_retry_time = 'infinity', claim_seq = nextval('claim_fence')`)
	}
	park()
	command := func(want int, args ...string) string {
		t.Helper()
		var out, complaints bytes.Buffer
		if status := run(t.Context(), append(args, "--url", i.admin, "--token", w.token), &out, &complaints); status != want {
			t.Fatalf("inboxd %s ended with %d, want %d\n%s%s", strings.Join(args, " "), status, want, out.String(), complaints.String())
		}
		return out.String()
	}
	for _, wrong := range [][]string{
		{"parked", "retry"},
		{"parked", "retry", "1.1"},
		{"parked", "retry", "1.1", "--claim-seq", "1", "--handler", "books"},
		{"parked", "discard", "--handler", "books", "--claim-seq", "1"},
		{"parked", "retry", "--handler", "nobody"},
		{"parked", "done", "--handler="},
		{"parked", "done", "--all", "--handler", "books"},
		{"parked", "done", "--dry-run"},
		{"replay"},
		{"replay", "1", "--status", "DONE"},
		{"replay", "--handler", "books"},
		{"jobs", "list", "--status", "lost"},
		{"replay", "--status", "DONE", "--all", "--to-handler", "books,mail"},
	} {
		command(exitUsage, wrong...)
	}
	if out := command(0, "parked", "retry", "--handler", "books", "--dry-run"); !regexp.MustCompile(fmt.Sprintf(`books +paid +%d\n`, messages)).MatchString(out) {
		t.Errorf("the dry run:\n%s", out)
	}
	if out := command(0, "jobs", "list"); strings.Count(out, "\n") != 1 {
		t.Errorf("there are jobs after what was refused and the dry run:\n%s", out)
	}
	if out := command(0, "parked", "retry", "--handler", "books", "--message-id", "m-3", "--reason", "mended"); !regexp.MustCompile(`retry +books +done +100% +1 +0`).MatchString(out) {
		t.Errorf("the job:\n%s", out)
	}
	message := w.count(t, `SELECT id FROM inbox_message WHERE message_id = 'm-3'`)
	if out := command(0, "messages", "timeline", fmt.Sprint(message)); !strings.Contains(out, `delivery.retry by test, job 1: mended`) {
		t.Errorf("the timeline doesn't say who retried it:\n%s", out)
	}
	park()
	// At one a second it takes a minute, unless it is cancelled.
	var job client.Job
	if err := json.Unmarshal([]byte(command(0, "parked", "discard", "--all", "--pace", "1", "--detach", "--json")), &job); err != nil || job.Status != client.JobRunning || job.Pace != 1 {
		t.Fatalf("the job is %+v, %v", job, err)
	}
	if out := command(0, "jobs", "cancel", job.ID, "--reason", "not so"); !strings.Contains(out, "cancelled") {
		t.Errorf("jobs cancel:\n%s", out)
	}
	command(exitConflict, "jobs", "cancel", job.ID)
	command(exitNotFound, "jobs", "get", "99")
	if out := command(0, "jobs", "get", job.ID); !strings.Contains(out, "cancelled") {
		t.Errorf("jobs get:\n%s", out)
	}
	left := w.count(t, `SELECT count(*) FROM delivery`)
	if out := command(0, "parked", "done", "--source", "shop"); !regexp.MustCompile(fmt.Sprintf(`100%% +%d +0`, left)).MatchString(out) {
		t.Errorf("the job:\n%s", out)
	}
	if out := command(0, "replay", "--status", "DONE", "--all", "--to-handler", "books"); !regexp.MustCompile(fmt.Sprintf(`replay .*100%% +%d +0`, left)).MatchString(out) {
		t.Errorf("the job:\n%s", out)
	}
	if out := command(0, "jobs", "list"); strings.Count(out, "\n") != 5 {
		t.Errorf("jobs list:\n%s", out)
	}
	w.checkClean(t)
}
