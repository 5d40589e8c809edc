package postgres_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/inboxd/inboxd/inbox"
)

// park stores so many messages for the handler, and parks them without attempts.
func (f *fixture) parkMany(t *testing.T, prefix string, n int) {
	t.Helper()
	messages := make([]inbox.Message, n)
	for i := range messages {
		messages[i] = f.message(fmt.Sprint(prefix, i))
	}
	f.insert(t, messages...)
	f.parkAll(t)
}

// parkAll parks what is PENDING, each under a claim of its own.
func (f *fixture) parkAll(t *testing.T) {
	t.Helper()
	f.exec(t, `UPDATE delivery SET status = 'MANUAL_REQUIRED', next_retry_time = 'infinity', claim_seq = nextval('claim_fence') WHERE status = 'PENDING'`)
}

func (f *fixture) createJob(t *testing.T, j inbox.Job) *inbox.Job {
	t.Helper()
	if j.Action != inbox.JobReplay {
		j.Filter.Status = inbox.ManualRequired
	}
	if err := f.CreateJob(t.Context(), inbox.Actor{Name: "test", Reason: "a test order"}, &j); err != nil {
		t.Fatalf("CreateJob = %v", err)
	}
	return &j
}

func (f *fixture) plan(t *testing.T, j inbox.Job) inbox.JobPlan {
	t.Helper()
	if j.Action != inbox.JobReplay {
		j.Filter.Status = inbox.ManualRequired
	}
	plan, err := f.PlanJob(t.Context(), &j)
	if err != nil {
		t.Fatalf("PlanJob = %v", err)
	}
	return plan
}

// runJob runs a job to its end by pages of about so many deliveries, and returns it as it is then.
func (f *fixture) runJob(t *testing.T, id int64, page int) inbox.Job {
	t.Helper()
	for range 10_000 {
		j := f.job(t, id)
		if j.Status != inbox.JobRunning {
			return j
		}
		selection, err := f.SelectForJob(t.Context(), &j, page)
		if err != nil {
			t.Fatalf("SelectForJob = %v", err)
		}
		if _, err := f.MoveForJob(t.Context(), &j, inbox.JobPage{Messages: selection.Messages, Cursor: selection.Next}); err != nil {
			t.Fatalf("MoveForJob = %v", err)
		}
	}
	t.Fatal("the job doesn't end")
	return inbox.Job{}
}

func (f *fixture) job(t *testing.T, id int64) inbox.Job {
	t.Helper()
	j, err := f.Job(t.Context(), id)
	if err != nil {
		t.Fatalf("Job = %v", err)
	}
	return j
}

// counts is selected, moved and skipped of a job.
func counts(j inbox.Job) [3]int64 { return [3]int64{j.Selected, j.Moved, j.Skipped} }

func TestJobActsOnWhatIsParked(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		action inbox.JobAction
		audit  inbox.Action
		want   row
		ledger []string
	}{
		{inbox.JobRetry, inbox.DeliveryRetry, row{status: "PENDING", due: "now"}, nil},
		{inbox.JobDone, inbox.DeliveryDone, row{status: "DONE", due: "never"}, []string{"DONE 0 1 1 a test order"}},
		{inbox.JobDiscard, inbox.DeliveryDiscard, row{status: "DISCARDED", due: "never"}, []string{"DISCARDED 0 1 1 a test order"}},
	} {
		t.Run(string(test.action), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			other := f.addHandler(t, "other")
			f.readVersion(t)
			m := f.message("first")
			m.Routes = append(m.Routes, inbox.Route{HandlerID: other, MaxRetryCount: 2})
			id := f.insert(t, m)[0].ID
			f.exec(t, `UPDATE delivery SET status = 'MANUAL_REQUIRED', next_retry_time = 'infinity', claim_seq = nextval('claim_fence') WHERE handler_id = $1`, f.handler)
			f.exec(t, `UPDATE delivery SET status = 'MANUAL_REQUIRED', next_retry_time = 'infinity' WHERE handler_id = $1`, other)
			j := f.createJob(t, inbox.Job{Action: test.action, Filter: inbox.Filter{HandlerID: f.handler}})
			if ended := f.runJob(t, j.ID, 10); counts(ended) != [3]int64{1, 1, 0} || ended.Status != inbox.JobEnded || ended.Progress() != 1 || ended.FinishedAt.IsZero() {
				t.Errorf("the job is %+v", ended)
			}
			mine := inbox.DeliveryID{Message: id, Handler: f.handler}
			if got := f.read(t, mine); got != test.want {
				t.Errorf("the delivery is %+v, want %+v", got, test.want)
			}
			if got := f.ledger(t, mine); !slices.Equal(got, test.ledger) {
				t.Errorf("the ledger is %q, want %q", got, test.ledger)
			}
			if got := f.read(t, inbox.DeliveryID{Message: id, Handler: other}); got.status != "MANUAL_REQUIRED" {
				t.Errorf("the other handler's delivery is %+v", got)
			}
			// Who did it and why: from the message, and from the job.
			acts, err := f.ListAudit(t.Context(), inbox.AuditFilter{Message: id}, 0, 10)
			if err != nil || len(acts.Items) != 1 || acts.Items[0].Action != test.audit || acts.Items[0].Job != j.ID || acts.Items[0].Actor.Reason != "a test order" {
				t.Errorf("the audit of the message is %+v, %v", acts, err)
			}
			if made, err := f.ListAudit(t.Context(), inbox.AuditFilter{Action: inbox.JobCreate}, 0, 10); err != nil || len(made.Items) != 1 || made.Items[0].Object != fmt.Sprint(j.ID) {
				t.Errorf("the audit of the job is %+v, %v", made, err)
			}
			line, err := f.Timeline(t.Context(), id)
			if err != nil || !slices.ContainsFunc(line.Events, func(e inbox.Event) bool { return e.Kind == inbox.EventActed && e.Job == j.ID }) {
				t.Errorf("the timeline doesn't show the job: %+v, %v", line, err)
			}
			f.checkClean(t)
		})
	}
}

// TestJobLeavesLaterAlone: what fails again after its retry, and what comes later, is not the job's.
func TestJobLeavesLaterAlone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.parkMany(t, "m", 3)
	retry := f.createJob(t, inbox.Job{Action: inbox.JobRetry, Filter: inbox.Filter{HandlerID: f.handler}})
	again := f.createJob(t, inbox.Job{Action: inbox.JobRetry, Filter: inbox.Filter{HandlerID: f.handler}})
	f.parkMany(t, "late", 2)
	f.runJob(t, retry.ID, 1)
	f.parkAll(t) // all fail again
	if ended := f.runJob(t, again.ID, 1); counts(ended) != [3]int64{0, 0, 0} {
		t.Errorf("the second job is %+v: it took what was claimed after its creation", ended)
	}
	if n := f.value(t, `SELECT count(*) FROM delivery WHERE status = 'MANUAL_REQUIRED'`); n != 5 {
		t.Errorf("%d are parked, want 5", n)
	}

	// A replay takes what had ended when it was created.
	f.exec(t, `UPDATE delivery SET status = 'PENDING', next_retry_time = now()`)
	claims := f.claim(t, 5)
	f.record(t, done(claims[0]))
	replay := f.createJob(t, inbox.Job{Action: inbox.JobReplay, Filter: inbox.Filter{HandlerID: f.handler, Status: inbox.Done}})
	for _, c := range claims[1:] {
		f.record(t, done(c))
	}
	if ended := f.runJob(t, replay.ID, 1); counts(ended) != [3]int64{1, 1, 0} {
		t.Errorf("the replay is %+v, want one", ended)
	}
	f.checkClean(t)
}

// TestJobSkipsWhatHasMovedOn: a page is only what was selected, and still as it was.
func TestJobSkipsWhatHasMovedOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.parkMany(t, "m", 4)
	j := f.createJob(t, inbox.Job{Action: inbox.JobRetry, Filter: inbox.Filter{SourceID: f.source}})
	selection, err := f.SelectForJob(t.Context(), j, 10)
	if err != nil || len(selection.Messages) != 4 || selection.Next != 0 {
		t.Fatalf("SelectForJob = %+v, %v", selection, err)
	}
	// One was retried by hand, one failed again since, and is parked by a later claim.
	at := func(i int) inbox.DeliveryID {
		return inbox.DeliveryID{Message: selection.Messages[i].ID, Handler: f.handler}
	}
	if _, err := f.Retry(t.Context(), operator, at(0), selection.Messages[0].Items[0].ClaimSeq); err != nil {
		t.Fatal(err)
	}
	f.exec(t, `UPDATE delivery SET claim_seq = nextval('claim_fence') WHERE id = $1`, at(1).Message)
	page := inbox.JobPage{Messages: selection.Messages, Cursor: selection.Next}
	if moved, err := f.MoveForJob(t.Context(), j, page); err != nil || moved != 2 {
		t.Errorf("MoveForJob = %d, %v, want 2", moved, err)
	}
	if now := f.job(t, j.ID); counts(now) != [3]int64{4, 2, 2} || now.Status != inbox.JobEnded {
		t.Errorf("the job is %+v", now)
	}
	// The same page again, as a second leader would: nothing.
	if moved, err := f.MoveForJob(t.Context(), j, page); !errors.Is(err, inbox.ErrConflict) || moved != 0 {
		t.Errorf("MoveForJob again = %d, %v, want a conflict", moved, err)
	}
	if n := f.value(t, `SELECT count(*) FROM job_delivery`); n != 2 {
		t.Errorf("%d deliveries are linked to the job, want 2", n)
	}
}

// TestJobReplays [E18]: names and keys that look alike are others.
func TestJobReplays(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	alike := f.addHandler(t, "books-2")
	second := f.value(t, `INSERT INTO source (name, provider) VALUES ('shop-2', 'none') RETURNING id`)
	f.readVersion(t)
	var messages []inbox.Message
	for _, key := range []string{"order 1", "order 10", "Order 1", "order 1 ", "order%", "order_1"} {
		for _, source := range []int64{f.source, second} {
			m := f.message(fmt.Sprint(key, " of ", source))
			m.SourceID, m.BizKey = source, key
			m.Routes = append(m.Routes, inbox.Route{HandlerID: alike, MaxRetryCount: 2})
			messages = append(messages, m)
		}
	}
	stored := f.insert(t, messages...)
	f.exec(t, `
WITH ended AS (DELETE FROM delivery RETURNING *)
INSERT INTO outcome (id, handler_id, source_id, received_at, finished_at, claim_seq, replay_no, result)
SELECT id, handler_id, source_id, received_at, now(), nextval('claim_fence'), replay_no, 'DONE' FROM ended`)

	filter := inbox.Filter{Status: inbox.Done, SourceID: f.source, HandlerID: f.handler, BizKey: "order 1"}
	plan := f.plan(t, inbox.Job{Action: inbox.JobReplay, Filter: filter})
	if want := (inbox.JobGroup{Handler: "books", MessageType: "paid", Deliveries: 1}); plan.Deliveries != 1 || plan.AtLeast || !slices.Equal(plan.Groups, []inbox.JobGroup{want}) {
		t.Errorf("the plan is %+v", plan)
	}
	if n := f.value(t, `SELECT count(*) FROM delivery`) + f.value(t, `SELECT count(*) FROM job`); n != 0 {
		t.Errorf("a dry run left %d rows", n)
	}
	j := f.createJob(t, inbox.Job{Action: inbox.JobReplay, Filter: filter})
	if ended := f.runJob(t, j.ID, 10); counts(ended) != [3]int64{1, 1, 0} {
		t.Errorf("the job is %+v", ended)
	}
	if n := f.value(t, `SELECT count(*) FROM delivery`); n != 1 {
		t.Errorf("%d deliveries were made, want 1", n)
	}
	if got, want := f.read(t, inbox.DeliveryID{Message: stored[0].ID, Handler: f.handler}), (row{status: "PENDING", replayNo: 1, due: "now"}); got != want {
		t.Errorf("the delivery is %+v, want %+v", got, want)
	}

	// All that is left, to one handler.
	all := inbox.Job{Action: inbox.JobReplay, Filter: inbox.Filter{Status: inbox.Done, SourceID: second}, ToHandler: alike}
	if plan := f.plan(t, all); plan.Deliveries != 6 {
		t.Errorf("the plan is %+v, want 6", plan)
	}
	if ended := f.runJob(t, f.createJob(t, all).ID, 2); counts(ended) != [3]int64{6, 6, 0} {
		t.Errorf("the job is %+v", ended)
	}
	if n := f.value(t, fmt.Sprintf(`SELECT count(*) FROM delivery WHERE handler_id = %d AND source_id = %d`, alike, second)); n != 6 {
		t.Errorf("%d deliveries to the handler, want 6", n)
	}
	if n := f.value(t, `SELECT count(*) FROM delivery`); n != 7 {
		t.Errorf("%d deliveries, want 7", n)
	}
	f.checkClean(t)
}

func TestJobReplaysUnrouted(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(t, `UPDATE handler SET message_types = '{refunded}'`)
	f.readVersion(t)
	for i := range 5 {
		m := f.message(fmt.Sprint("m", i))
		m.Routes = nil
		f.insert(t, m)
	}
	job := inbox.Job{Action: inbox.JobReplay, Filter: inbox.Filter{Status: inbox.Unrouted, SourceID: f.source}}
	if plan := f.plan(t, job); plan.Deliveries != 0 {
		t.Errorf("the plan is %+v, and nobody subscribes", plan)
	}
	named := job
	named.ToHandler, named.Filter.MessageID = f.handler, "m3"
	if ended := f.runJob(t, f.createJob(t, named).ID, 2); counts(ended) != [3]int64{1, 1, 0} {
		t.Errorf("the job to a named handler is %+v", ended)
	}
	f.exec(t, `UPDATE handler SET message_types = '{paid}'`)
	if ended := f.runJob(t, f.createJob(t, job).ID, 2); counts(ended) != [3]int64{4, 4, 0} {
		t.Errorf("the job is %+v, want the other four", ended)
	}
	if n := f.value(t, `SELECT count(*) FROM delivery WHERE replay_no = 1 AND status = 'PENDING'`); n != 5 {
		t.Errorf("%d deliveries, want 5", n)
	}
	f.checkClean(t)
}

// TestPlanIsWhatTheJobDoes compares a dry run with the job, for filters of each kind.
func TestPlanIsWhatTheJobDoes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	other, gone := f.addHandler(t, "other"), f.addHandler(t, "gone")
	f.readVersion(t)
	var messages []inbox.Message
	for i := range 40 {
		m := f.message(fmt.Sprint("m", i))
		m.MessageType, m.BizKey = []string{"paid", "refunded"}[i%2], fmt.Sprint("order ", i%10)
		m.Routes = append(m.Routes, inbox.Route{HandlerID: other, MaxRetryCount: 2}, inbox.Route{HandlerID: gone, MaxRetryCount: 2})
		messages = append(messages, m)
	}
	f.insert(t, messages...)
	f.exec(t, `UPDATE handler SET deleted_at = now() WHERE name = 'gone'`)
	for _, filter := range []inbox.Filter{
		{}, {HandlerID: other}, {MessageType: "paid"}, {BizKey: "order 3"}, {MessageID: "m7"}, {HandlerID: f.handler, MessageType: "refunded"}, {HandlerID: gone},
	} {
		f.exec(t, `UPDATE delivery SET status = 'MANUAL_REQUIRED', next_retry_time = 'infinity', claim_seq = nextval('claim_fence')`)
		job := inbox.Job{Action: inbox.JobRetry, Filter: filter}
		plan := f.plan(t, job)
		ended := f.runJob(t, f.createJob(t, job).ID, 7)
		if int(ended.Moved) != plan.Deliveries || ended.Skipped != 0 || (plan.Deliveries == 0) != (filter.HandlerID == gone) {
			t.Errorf("%+v: the job moved %d and skipped %d, the plan was %+v", filter, ended.Moved, ended.Skipped, plan)
		}
		var groups []string
		for _, g := range plan.Groups {
			groups = append(groups, fmt.Sprint(g.Handler, " ", g.MessageType, " ", g.Deliveries))
		}
		rows, err := f.pool.Query(t.Context(), `
SELECT h.name || ' ' || m.message_type || ' ' || count(*) FROM job_delivery AS j JOIN handler AS h ON h.id = j.handler_id JOIN inbox_message AS m ON m.id = j.id
WHERE job_id = $1 GROUP BY h.name, m.message_type ORDER BY count(*) DESC, h.name, m.message_type`, ended.ID)
		if err != nil {
			t.Fatal(err)
		}
		var moved []string
		for rows.Next() {
			var text string
			if err := rows.Scan(&text); err != nil {
				t.Fatal(err)
			}
			moved = append(moved, text)
		}
		rows.Close()
		if !slices.Equal(groups, moved) {
			t.Errorf("%+v: the plan was %q, the job moved %q", filter, groups, moved)
		}
	}
}

func TestCancelJob(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.parkMany(t, "m", 6)
	j := f.createJob(t, inbox.Job{Action: inbox.JobDiscard, Filter: inbox.Filter{HandlerID: f.handler}})
	selection, err := f.SelectForJob(t.Context(), j, 2)
	if err != nil {
		t.Fatal(err)
	}
	page := inbox.JobPage{Messages: selection.Messages, Cursor: selection.Next}
	if moved, err := f.MoveForJob(t.Context(), j, page); err != nil || moved != 2 {
		t.Fatalf("MoveForJob = %d, %v", moved, err)
	}
	if moved, err := f.MoveForJob(t.Context(), j, page); !errors.Is(err, inbox.ErrConflict) || moved != 0 {
		t.Errorf("the same page again, as a leader from before would = %d, %v, want a conflict", moved, err)
	}
	cancelled, err := f.CancelJob(t.Context(), operator, j.ID)
	if err != nil || cancelled.Status != inbox.JobCancelled || counts(cancelled) != [3]int64{2, 2, 0} || cancelled.FinishedAt.IsZero() {
		t.Errorf("CancelJob = %+v, %v", cancelled, err)
	}
	if p := cancelled.Progress(); p <= 0 || p >= 1 {
		t.Errorf("its progress is %v, want a part", p)
	}
	running, err := f.RunningJobs(t.Context())
	if err != nil || len(running) != 0 {
		t.Errorf("RunningJobs = %+v, %v", running, err)
	}
	next, err := f.SelectForJob(t.Context(), &cancelled, 10)
	if err != nil {
		t.Fatal(err)
	}
	if moved, err := f.MoveForJob(t.Context(), &cancelled, inbox.JobPage{Messages: next.Messages, Cursor: next.Next}); !errors.Is(err, inbox.ErrConflict) || moved != 0 {
		t.Errorf("a page after that = %d, %v, want a conflict", moved, err)
	}
	if _, err := f.CancelJob(t.Context(), operator, j.ID); !errors.Is(err, inbox.ErrConflict) || !strings.Contains(err.Error(), "cancelled") {
		t.Errorf("CancelJob again = %v, want a conflict that says how it ended", err)
	}
	if _, err := f.CancelJob(t.Context(), operator, j.ID+1); !errors.Is(err, inbox.ErrNotFound) {
		t.Errorf("CancelJob of none = %v", err)
	}
	if n := f.value(t, `SELECT count(*) FROM delivery WHERE status = 'MANUAL_REQUIRED'`); n != 4 {
		t.Errorf("%d are parked, want 4", n)
	}
	if acts, err := f.ListAudit(t.Context(), inbox.AuditFilter{Action: inbox.JobCancel}, 0, 10); err != nil || len(acts.Items) != 1 {
		t.Errorf("the audit has %+v, %v", acts, err)
	}
}

// TestJobPace looks at when the next page may come, which each page writes down.
func TestJobPace(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.parkMany(t, "m", 10)
	j := f.createJob(t, inbox.Job{Action: inbox.JobRetry, Filter: inbox.Filter{HandlerID: f.handler}, Pace: 4})
	selection, err := f.SelectForJob(t.Context(), j, 6)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.MoveForJob(t.Context(), j, inbox.JobPage{Messages: selection.Messages, Cursor: selection.Next}); err != nil {
		t.Fatal(err)
	}
	if ms := f.value(t, `SELECT (extract(epoch FROM next_at - updated_at) * 1000)::bigint FROM job`); ms != 1500 {
		t.Errorf("after 6 deliveries at 4 a second the next page may come after %d ms, want 1500", ms)
	}
	f.exec(t, `UPDATE job SET next_at = now() + interval '1 hour'`)
	if now := f.job(t, j.ID); now.Wait < 59*time.Minute {
		t.Errorf("the job waits for %s, want an hour", now.Wait)
	}
}

// TestJobRooms: half of a handler's concurrency may be due at once.
func TestJobRooms(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	room := func() int {
		t.Helper()
		rooms, err := f.JobRooms(t.Context(), []int64{f.handler}, 500)
		if err != nil || len(rooms) != 1 || rooms[0].HandlerID != f.handler {
			t.Fatalf("JobRooms = %+v, %v", rooms, err)
		}
		return rooms[0].Room
	}
	if n := room(); n != 5 {
		t.Errorf("room for %d at an idle handler with a concurrency of 10, want 5", n)
	}
	f.insert(t, f.message("a"), f.message("b"))
	if n := room(); n != 3 {
		t.Errorf("room for %d with 2 due, want 3", n)
	}
	for i := range 8 {
		f.insert(t, f.message(fmt.Sprint("m", i)))
	}
	if n := room(); n != 0 {
		t.Errorf("room for %d with 10 due, want 0", n)
	}
	f.exec(t, `UPDATE delivery SET next_retry_time = now() + interval '1 hour'`)
	if n := room(); n != 5 {
		t.Errorf("room for %d with nothing due yet, want 5", n)
	}
	f.exec(t, `UPDATE handler SET paused = true`)
	if n := room(); n != 500 {
		t.Errorf("room for %d at a paused handler, want 500", n)
	}
}

func TestJobOfANewerRelease(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	j := f.createJob(t, inbox.Job{Action: inbox.JobRetry, Filter: inbox.Filter{HandlerID: f.handler}})
	f.exec(t, `UPDATE job SET filter = filter || '{"Colour": "red"}'`)
	if now := f.job(t, j.ID); !now.Broken {
		t.Errorf("a filter with a field that nobody knows was read as %+v", now.Filter)
	}
	if err := f.FailJob(t.Context(), j.ID, "why"); err != nil {
		t.Fatal(err)
	}
	if now := f.job(t, j.ID); now.Status != inbox.JobFailed || now.Error != "why" || now.FinishedAt.IsZero() {
		t.Errorf("the job is %+v", now)
	}
}

// TestTwoLeadersRunOneJob: for a while two instances can take themselves for the leader. Of those who do a page
// at once, one does it.
func TestTwoLeadersRunOneJob(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.parkMany(t, "m", 40)
	for _, job := range []inbox.Job{
		{Action: inbox.JobDiscard, Filter: inbox.Filter{HandlerID: f.handler}},
		{Action: inbox.JobReplay, Filter: inbox.Filter{HandlerID: f.handler, Status: inbox.Discarded}},
	} {
		id := f.createJob(t, job).ID
		for j := f.job(t, id); j.Status == inbox.JobRunning; j = f.job(t, id) {
			selection, err := f.SelectForJob(t.Context(), &j, 8)
			if err != nil {
				t.Fatal(err)
			}
			page := inbox.JobPage{Messages: selection.Messages, Cursor: selection.Next}
			var did atomic.Int64
			var group sync.WaitGroup
			for range 4 {
				group.Go(func() {
					moved, err := f.MoveForJob(t.Context(), &j, page)
					if err == nil {
						did.Add(1)
					} else if !errors.Is(err, inbox.ErrConflict) || moved != 0 {
						t.Errorf("MoveForJob = %d, %v, want a conflict", moved, err)
					}
				})
			}
			group.Wait()
			if n := did.Load(); n != 1 {
				t.Fatalf("%d did the page from %d down, want 1", n, j.Cursor)
			}
		}
		if ended := f.job(t, id); counts(ended) != [3]int64{40, 40, 0} {
			t.Errorf("the job is %+v", ended)
		}
	}
	f.checkClean(t)
}

// TestJobRefused: a page with a row that the database refuses changes nothing, and can be skipped.
func TestJobRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.parkMany(t, "m", 3)
	f.exec(t, `ALTER TABLE delivery ADD CONSTRAINT odd CHECK (id <> 2 OR status <> 'PENDING')`)
	j := f.createJob(t, inbox.Job{Action: inbox.JobRetry, Filter: inbox.Filter{HandlerID: f.handler}})
	selection, err := f.SelectForJob(t.Context(), j, 10)
	if err != nil {
		t.Fatal(err)
	}
	page := inbox.JobPage{Messages: selection.Messages, Cursor: selection.Next}
	if moved, err := f.MoveForJob(t.Context(), j, page); !errors.Is(err, inbox.ErrRefused) || moved != 0 {
		t.Errorf("MoveForJob = %d, %v, want refused", moved, err)
	}
	if now := f.job(t, j.ID); counts(now) != [3]int64{} || now.Cursor != j.Cursor || now.Status != inbox.JobRunning {
		t.Errorf("the job is %+v", now)
	}
	if n := f.value(t, `SELECT count(*) FROM delivery WHERE status = 'PENDING'`) + f.value(t, `SELECT count(*) FROM job_delivery`); n != 0 {
		t.Errorf("the refused page left %d rows", n)
	}
	page.Refused = "why"
	if moved, err := f.MoveForJob(t.Context(), j, page); err != nil || moved != 0 {
		t.Errorf("MoveForJob = %d, %v, want them skipped", moved, err)
	}
	if now := f.job(t, j.ID); counts(now) != [3]int64{3, 0, 3} || now.Error != "why" || now.Status != inbox.JobEnded {
		t.Errorf("the job is %+v", now)
	}
	f.checkClean(t)
}
