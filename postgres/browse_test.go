package postgres_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/inboxd/inboxd/inbox"
)

// TestLedgers: both ledgers by pages of any length, with each filter, hold what plain SQL finds.
func TestLedgers(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	other := f.history(t)
	f.exec(t, `UPDATE outcome SET finished_at = date_trunc('second', finished_at) - interval '1 second'`) // many at one time
	for _, list := range []struct {
		table  string
		filter inbox.LedgerFilter
		where  string
	}{
		{"attempt", inbox.LedgerFilter{}, "true"},
		{"attempt", inbox.LedgerFilter{Class: inbox.ClassTimeout}, "class = 'timeout'"},
		{"attempt", inbox.LedgerFilter{ResponseStatus: 500, SourceID: f.source}, "response_status = 500"},
		{"attempt", inbox.LedgerFilter{HandlerID: other}, "false"},
		{"attempt", inbox.LedgerFilter{HandlerID: f.handler, From: time.Now().Add(-time.Hour)}, "true"},
		{"attempt", inbox.LedgerFilter{To: time.Now().Add(-time.Hour)}, "false"},
		{"attempt", inbox.LedgerFilter{Message: 3}, "id = 3"},
		{"outcome", inbox.LedgerFilter{}, "true"},
		{"outcome", inbox.LedgerFilter{Result: inbox.Unrouted}, "result = 'UNROUTED'"},
		{"outcome", inbox.LedgerFilter{Result: inbox.Done, HandlerID: f.handler}, "result = 'DONE'"},
		{"outcome", inbox.LedgerFilter{HandlerID: f.handler}, "handler_id IS NOT NULL"},
		{"outcome", inbox.LedgerFilter{ResponseStatus: 200}, "response_status = 200"},
		{"outcome", inbox.LedgerFilter{SourceID: 99}, "false"},
		{"outcome", inbox.LedgerFilter{Message: 1}, "id = 1"},
		{"outcome", inbox.LedgerFilter{From: time.Now().Add(time.Hour)}, "false"},
	} {
		want := f.texts(t, `SELECT id || '.' || coalesce(handler_id, 0) || ' ' || claim_seq FROM `+list.table+` WHERE `+list.where+`
ORDER BY finished_at DESC, id DESC, coalesce(handler_id, 0) DESC, claim_seq DESC`)
		if list.where != "false" && len(want) == 0 {
			t.Errorf("%s %s: the history has none", list.table, list.where)
		}
		for _, limit := range []int{1, 4, 500} {
			var got []string
			var after inbox.LedgerPosition
			for pages := 0; pages == 0 || after.Message != 0; pages++ {
				before := len(got)
				if list.table == "attempt" {
					page, err := f.ListAttempts(t.Context(), list.filter, after, limit)
					if err != nil {
						t.Fatal(err)
					}
					for _, a := range page.Items {
						got = append(got, fmt.Sprintf("%s %d", a.DeliveryID, a.ClaimSeq))
					}
					after = page.Next
				} else {
					page, err := f.ListOutcomes(t.Context(), list.filter, after, limit)
					if err != nil {
						t.Fatal(err)
					}
					for _, o := range page.Items {
						got = append(got, fmt.Sprintf("%s %d", o.DeliveryID, o.ClaimSeq))
					}
					after = page.Next
				}
				if len(got)-before > limit || pages > 100 {
					t.Fatalf("%s %s: a page of %d, after %d", list.table, list.where, len(got)-before, pages)
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s %s by %d = %q, want %q", list.table, list.where, limit, got, want)
			}
		}
	}
}

// TestLedgersWalkInSteps: a filter that matches next to nothing gives short pages, and loses no row.
func TestLedgersWalkInSteps(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(t, `INSERT INTO outcome (id, handler_id, source_id, received_at, finished_at, claim_seq, result, response_status)
SELECT n, 1, 1, now(), now() - n * interval '1 millisecond', n, 'DONE', CASE WHEN n % 9999 = 0 THEN 202 ELSE 200 END FROM generate_series(1, 30000) AS n`)
	var got []int64
	var after inbox.LedgerPosition
	pages := 0
	for ; pages == 0 || after.Message != 0; pages++ {
		page, err := f.ListOutcomes(t.Context(), inbox.LedgerFilter{ResponseStatus: 202}, after, 100)
		if err != nil || pages > 9 {
			t.Fatalf("page %d: %v", pages, err)
		}
		for _, o := range page.Items {
			got = append(got, o.Message)
		}
		after = page.Next
	}
	if !slices.Equal(got, []int64{9999, 19998, 29997}) || pages != 2 {
		t.Errorf("%d pages hold %v, want 3 rows on 2 pages: each looks at a bounded number", pages, got)
	}
}

func TestLookUp(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	byBiz, byOrder, byID, by2 := f.message("a"), f.message("b"), f.message("order 7"), f.message("c")
	byBiz.BizKey, byOrder.OrderingKey = "order 7", "order 7"
	by2.BizKey, by2.OrderingKey = "order 7", "order 7"
	f.insert(t, byBiz, f.message("x"), byOrder, byID, by2)
	for _, limit := range []int{1, 3, 50} {
		var got []string
		var after inbox.DeliveryID
		for pages := 0; pages == 0 || after.Message != 0; pages++ {
			page, err := f.LookUp(t.Context(), nil, "order 7", after, limit)
			if err != nil || len(page.Items) > limit || pages > 9 {
				t.Fatalf("LookUp = %+v, %v", page, err)
			}
			for _, m := range page.Items {
				got = append(got, m.MessageID)
				if len(m.Deliveries) != 1 || m.Status != inbox.Pending {
					t.Errorf("message %s has %+v", m.MessageID, m)
				}
			}
			after = page.Next
		}
		if want := []string{"c", "order 7", "b", "a"}; !slices.Equal(got, want) {
			t.Errorf("by %d: %q, want %q", limit, got, want)
		}
	}
	if page, err := f.LookUp(t.Context(), nil, "nothing", inbox.DeliveryID{}, 5); err != nil || len(page.Items) != 0 || page.Next.Message != 0 {
		t.Errorf("LookUp of nothing = %+v, %v", page, err)
	}
}

// kinds returns the kinds of a timeline's events and checks that they are in order of time.
func kinds(t *testing.T, f *fixture, id int64) (string, *inbox.Timeline) {
	t.Helper()
	line, err := f.Timeline(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for i, e := range line.Events {
		if i > 0 && e.At.Before(line.Events[i-1].At) {
			t.Errorf("event %d (%s) is before the one ahead of it", i, e.Kind)
		}
		if (e.Delivery.Handler == 0) != (e.Handler == "") {
			t.Errorf("event %d is %+v", i, e)
		}
		list = append(list, string(e.Kind))
	}
	return strings.Join(list, " "), line
}

func TestTimeline(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := f.insert(t, f.message("one"))[0].ID
	f.exec(t, `INSERT INTO handler (name, url, sources, message_types, secrets, concurrency, timeout, max_retry_count, backoff_base, backoff_cap)
SELECT name, 'http://127.0.0.1:1', sources::text[], types::text[], '{x}', 1, '5 s', 2, '1 s', '1 h'
FROM (VALUES ('a-elsewhere', '{bank}', '{*}'), ('b-refunds', '{shop}', '{refunded}'), ('c-late', '{shop}', '{*}')) AS h (name, sources, types)`)
	step := func(want string) *inbox.Timeline {
		t.Helper()
		got, line := kinds(t, f, id)
		if got != want {
			t.Errorf("the timeline is %q, want %q", got, want)
		}
		return line
	}
	begin := "received verified stored routed"
	line := step(begin + " due")
	var why []string
	for _, n := range line.NotRouted {
		why = append(why, n.Handler+": "+n.Reason)
	}
	want := []string{
		"a-elsewhere: it doesn't subscribe to the source shop", `b-refunds: it doesn't subscribe to the type "paid"`,
		"c-late: it subscribes, but was registered after the message came",
	}
	if !slices.Equal(why, want) {
		t.Errorf("not routed: %q, want %q", why, want)
	}
	c := f.claim(t, 1)[0]
	step(begin + " claimed lease_ends")
	f.record(t, failed(c))
	line = step(begin + " failed due")
	if e := line.Events[4]; e.Class != inbox.ClassStatus || e.ResponseStatus != 500 || string(e.ResponseBody) != "oops\x00" || e.ClaimSeq != c.ClaimSeq || e.Owner != owner {
		t.Errorf("the failed attempt is %+v", e)
	}
	f.exec(t, `UPDATE delivery SET next_retry_time = now()`)
	c = f.park(t)
	step(begin + " failed failed parked")
	if _, err := f.Finish(t.Context(), inbox.Actor{Name: "test", Reason: "a test order"}, c.DeliveryID, c.ClaimSeq, inbox.Discarded); err != nil {
		t.Fatal(err)
	}
	line = step(begin + " failed failed discarded acted")
	if e := line.Events[6]; e.Detail != "a test order" {
		t.Errorf("the discard is %+v", e)
	}
	if _, err := f.Replay(t.Context(), operator, id, nil); err != nil {
		t.Fatal(err)
	}
	step(begin + " failed failed discarded acted replayed due acted")
	f.record(t, done(f.claim(t, 1)[0]))
	step(begin + " failed failed discarded acted acted replayed claimed done")

	none := f.message("none")
	none.Routes = nil
	f.readVersion(t)
	id = f.insert(t, none)[0].ID
	step("received verified stored unrouted")
	if _, err := f.Timeline(t.Context(), id+1); err == nil {
		t.Error("there is a timeline of no message")
	}
}
