package main

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/inboxd/inboxd/client"
)

// TestNightCall is the story that the operators' API is for. At night one of three handlers is down, and what 500 messages
// have for it is parked. A customer asks for an order; the operator on call finds it, sees what happened, mends the handler, asks what
// a retry would do, and lets it run at a pace while new messages go on. Then another handler needs some of its messages
// again. In the end the ledger balances, and the audit tells who did what and why.
func TestNightCall(t *testing.T) {
	t.Parallel()
	const (
		orders  = 400 // each is paid
		refunds = 100 // of the first so many orders
		pace    = 250
	)
	w := newWorld(t)
	i := w.start(t)
	var created client.CreatedToken
	i.call(t, http.MethodPost, "/tokens", map[string]any{"name": "ann", "role": "operate"}, &created)
	ann := *i
	ann.token = created.Secret

	var down atomic.Bool
	down.Store(true)
	handlers := map[string]*downstream{
		"books": newDownstream(t, nil), "mail": newDownstream(t, nil),
		"stock": newDownstream(t, func(rw http.ResponseWriter, _ *http.Request, _ []byte) {
			if down.Load() {
				rw.WriteHeader(http.StatusServiceUnavailable)
				_, _ = rw.Write([]byte("the stock is being moved"))
			}
		}),
	}
	i.call(t, http.MethodPost, "/sources", map[string]any{
		"name": "shop", "provider": "hmac", "secrets": []string{shopSecret},
		"settings": map[string]any{
			"signature":    map[string]any{"in": "header:X-Signature"},
			"message_id":   []string{"{header:X-Id}"},
			"message_type": []string{"{json:type}"},
			"ordering_key": []string{"{json:order}"},
			"biz_key":      map[string]any{"types": []string{"*"}, "from": []string{"{json:order}"}},
		},
	}, nil)
	for name, d := range handlers {
		registerHandler(t, i, name, d.URL, map[string]any{"timeout": "20s", "max_retry_count": 1, "backoff_base": "10ms", "backoff_cap": "20ms"})
	}

	// The night: everything is taken, and one handler's part is parked.
	shop := newShop(i)
	shop.send(t, "paid", 0, orders)
	shop.send(t, "refunded", 0, refunds)
	all := shop.sent()
	places := func() map[string]int { // how many deliveries are parked, by handler
		var stats client.Stats
		ann.call(t, http.MethodGet, "/stats", nil, &stats)
		parked := make(map[string]int)
		for _, p := range stats.Parking {
			if p.Place == "parked" {
				parked[*p.Handler] = int(p.Count.Count)
			}
		}
		return parked
	}
	done := func(handler string) int {
		return w.count(t, `SELECT count(*) FROM outcome AS o JOIN handler AS h ON h.id = o.handler_id WHERE h.name = $1 AND o.result = 'DONE'`, handler)
	}
	eventually(t, time.Minute, "two handlers have everything, and the third's is parked", func() bool {
		return done("books") == all && done("mail") == all && places()["stock"] == all
	})

	// The call: "where is my order?"
	var found client.FoundList
	ann.call(t, http.MethodGet, "/lookup?key=order-7", nil, &found)
	if len(found.Items) != 2 {
		t.Fatalf("the order has %d messages, want its payment and its refund", len(found.Items))
	}
	payment := found.Items[1] // the list is newest first
	if payment.Message.MessageType != "paid" || *payment.Message.BizKey != "order-7" || payment.Message.Status != "MANUAL_REQUIRED" || len(payment.Deliveries) != 3 {
		t.Errorf("the payment is %+v", payment)
	}
	for _, d := range payment.Deliveries {
		if want := map[bool]client.DeliveryStatus{true: "MANUAL_REQUIRED", false: "DONE"}[d.Handler == "stock"]; d.Status != want {
			t.Errorf("at %s it is %s, want %s", d.Handler, d.Status, want)
		}
	}
	story := timelineOf(t, &ann, payment.Message.ID)
	if n := story.count(func(e client.Event) bool {
		return e.Kind == "failed" && *e.Handler == "stock" && *e.ResponseStatus == 503 && *e.ResponseBody == "the stock is being moved"
	}); n != 2 || story.of("routed") != 3 || story.of("done") != 2 || story.of("parked") != 1 {
		t.Errorf("the timeline is %s", story)
	}

	// The handler is mended, which a ping shows; new messages come in.
	down.Store(false)
	var ping client.Ping
	ann.call(t, http.MethodPost, "/handlers/stock/ping", nil, &ping)
	if !ping.OK {
		t.Errorf("the ping is %+v", ping)
	}
	stopLive := shop.live(t)

	// What would a retry do? Nothing else, and nothing yet.
	retry := map[string]any{
		"action": "retry", "filter": map[string]any{"handler": "stock", "response_status": 503}, "pace": pace,
		"reason": "the stock is moved", "note": "call 17", "dry_run": true,
	}
	var plan client.JobPlan
	ann.call(t, http.MethodPost, "/jobs", retry, &plan)
	groups := make(map[string]int)
	for _, g := range plan.Groups {
		groups[g.Handler+" "+g.MessageType] = g.Deliveries
	}
	if plan.Deliveries != all || len(groups) != 2 || groups["stock paid"] != orders || groups["stock refunded"] != refunds {
		t.Errorf("the plan is %+v", plan)
	}
	if n := places()["stock"]; n != all {
		t.Errorf("%d are parked after the dry run, want %d", n, all)
	}

	// The retry, at a pace.
	before := shop.sent()
	retry["dry_run"] = false
	retried := ann.runJob(t, retry)
	if int(retried.Moved) != all || int(retried.Selected) != all || retried.Skipped != 0 || retried.By != "ann" {
		t.Errorf("the job is %+v, want %d moved", retried, all)
	}
	// A pace is a bound: a slow machine makes the job longer, never shorter. Its first second may come at once.
	if took, least := retried.FinishedAt.Sub(retried.CreatedAt), time.Duration(all/pace-1)*time.Second; took < least {
		t.Errorf("the job took %s, want at least %s", took, least)
	}
	eventually(t, time.Minute, "what was parked is done, and so are new messages", func() bool {
		return len(places()) == 0 && shop.sent() > before && done("stock") > all
	})
	stopLive()
	everything := shop.sent()
	eventually(t, time.Minute, "every message is done everywhere", func() bool {
		return done("books") == everything && done("mail") == everything && done("stock") == everything
	})

	// The mail about refunds had a wrong text: once more, to that handler alone, and not what came later.
	replayed := ann.runJob(t, map[string]any{
		"action": "replay", "filter": map[string]any{"handler": "mail", "message_type": "refunded", "status": "DONE"}, "reason": "a wrong text",
	})
	if int(replayed.Moved) != refunds || replayed.Skipped != 0 {
		t.Errorf("the replay is %+v, want %d moved", replayed, refunds)
	}
	eventually(t, time.Minute, "the mail is sent again", func() bool { return done("mail") == everything+refunds })

	// The ledger balances: each message is DONE at each handler once, and once more where it was replayed.
	for sql, want := range map[string]int{
		`SELECT count(*) FROM inbox_message`: everything,
		`SELECT count(*) FROM delivery`:      0,
		`SELECT count(*) FROM outcome`:       3*everything + refunds,
		`SELECT count(*) FROM (SELECT FROM outcome WHERE result = 'DONE' AND replay_no = 0 GROUP BY id, handler_id HAVING count(*) = 1) AS once`: 3 * everything,
		`SELECT count(*) FROM (SELECT FROM outcome AS o JOIN inbox_message AS m USING (id) JOIN handler AS h ON h.id = o.handler_id
			WHERE o.result = 'DONE' AND o.replay_no = 1 AND h.name = 'mail' AND m.message_type = 'refunded'
			GROUP BY o.id HAVING count(*) = 1) AS again`: refunds,
	} {
		if got := w.count(t, sql); got != want {
			t.Errorf("%s: %d, want %d", sql, got, want)
		}
	}
	for name, d := range handlers {
		if got := d.distinct(); got != everything+map[string]int{"stock": 1}[name] { // the ping is one
			t.Errorf("%s got %d messages of %d", name, got, everything)
		}
	}
	w.checkClean(t)

	// The audit and the timeline tell who did it, why, and with what.
	var audit client.AuditList
	i.call(t, http.MethodGet, "/audit?actor=ann&message="+payment.Message.ID, nil, &audit)
	if len(audit.Items) != 1 || audit.Items[0].Action != "delivery.retry" || *audit.Items[0].Reason != "the stock is moved" ||
		*audit.Items[0].Note != "call 17" || audit.Items[0].Job == nil || *audit.Items[0].Job != retried.ID {
		t.Errorf("the audit of the payment is %+v", audit.Items)
	}
	i.call(t, http.MethodGet, "/audit?actor=ann&action=job.create", nil, &audit)
	if len(audit.Items) != 2 || audit.Items[0].Object != replayed.ID || *audit.Items[0].Reason != "a wrong text" || audit.Items[1].Object != retried.ID {
		t.Errorf("the audit of the jobs is %+v", audit.Items)
	}
	if n := w.count(t, `SELECT count(*) FROM audit WHERE actor = 'ann' AND action IN ('delivery.retry', 'delivery.replay')`); n != all+refunds {
		t.Errorf("%d entries are about deliveries, want %d", n, all+refunds)
	}
	story = timelineOf(t, &ann, payment.Message.ID)
	if n := story.count(func(e client.Event) bool {
		return e.Kind == "acted" && *e.Actor == "ann" && *e.Reason == "the stock is moved" && e.Job != nil && *e.Job == retried.ID
	}); n != 1 || story.of("done") != 3 {
		t.Errorf("the timeline is %s", story)
	}
}

// runJob creates a job and waits for its end. Its progress only grows.
func (i *instance) runJob(t *testing.T, job map[string]any) client.Job {
	t.Helper()
	var j client.Job
	i.call(t, http.MethodPost, "/jobs", job, &j)
	moved, progress := int64(0), 0.0
	eventually(t, 2*time.Minute, "the job is done", func() bool {
		i.call(t, http.MethodGet, "/jobs/"+j.ID, nil, &j)
		if j.Moved < moved || j.Progress < progress || j.Progress > 1 {
			t.Errorf("the job went back from %d, %f to %d, %f", moved, progress, j.Moved, j.Progress)
		}
		moved, progress = j.Moved, j.Progress
		return j.Status != "running"
	})
	if j.Status != "done" || j.Progress != 1 || j.FinishedAt == nil {
		t.Fatalf("the job ended as %+v", j)
	}
	return j
}

// story is a message's timeline.
type story client.Timeline

func timelineOf(t *testing.T, i *instance, message string) story {
	t.Helper()
	var s story
	i.call(t, http.MethodGet, "/messages/"+message+"/timeline", nil, &s)
	return s
}

func (s story) count(is func(client.Event) bool) (n int) {
	for _, e := range s.Events {
		if is(e) {
			n++
		}
	}
	return n
}

func (s story) of(kind client.EventKind) int {
	return s.count(func(e client.Event) bool { return e.Kind == kind })
}

func (s story) String() string {
	text := ""
	for _, e := range s.Events {
		handler, detail := "", ""
		if e.Handler != nil {
			handler = *e.Handler
		}
		if e.Detail != nil {
			detail = *e.Detail
		}
		text += fmt.Sprintf("\n%s %s %s %s", e.At.Format(time.RFC3339Nano), e.Kind, handler, detail)
	}
	return text
}

// shop sends messages about orders.
type shop struct {
	to       string
	client   *http.Client
	accepted atomic.Int64
}

func newShop(i *instance) *shop {
	return &shop{to: i.public, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}}
}

func (s *shop) sent() int { return int(s.accepted.Load()) }

func (s *shop) post(t *testing.T, kind string, order int) {
	body := fmt.Sprintf(`{"type": %q, "order": "order-%d"}`, kind, order)
	status, _, err := postShop(t.Context(), s.client, s.to, fmt.Sprintf("%s-%d", kind, order), []byte(body))
	if err != nil || status != http.StatusOK {
		t.Errorf("post %s of order %d = %d, %v", kind, order, status, err)
		return
	}
	s.accepted.Add(1)
}

// send sends a message of each order from the first on, some at once.
func (s *shop) send(t *testing.T, kind string, first, count int) {
	t.Helper()
	var senders sync.WaitGroup
	next := atomic.Int64{}
	next.Store(int64(first))
	for range 16 {
		senders.Go(func() {
			for n := next.Add(1) - 1; n < int64(first+count); n = next.Add(1) - 1 {
				s.post(t, kind, int(n))
			}
		})
	}
	senders.Wait()
}

// live sends a message about a new order every now and then, until it is stopped.
func (s *shop) live(t *testing.T) (stop func()) {
	t.Helper()
	done := make(chan struct{})
	var sender sync.WaitGroup
	sender.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for order := 1_000_000; ; order++ {
			select {
			case <-done:
				return
			case <-tick.C:
				s.post(t, "paid", order)
			}
		}
	})
	stop = sync.OnceFunc(func() { close(done); sender.Wait() })
	t.Cleanup(stop)
	return stop
}
