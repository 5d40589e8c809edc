package postgres_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/inboxd/inboxd/inbox"
)

// TestReach: globs become the numbers of sources and handlers, deleted ones as well.
func TestReach(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	other := f.addHandler(t, "other")
	gone := f.addHandler(t, "books-old")
	if err := f.DeleteHandler(t.Context(), operator, "books-old"); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		scope    inbox.Scope
		sources  []int64
		handlers []int64
	}{
		{inbox.Scope{Sources: []string{"*"}, Handlers: []string{"books*"}}, nil, []int64{f.handler, gone}},
		{inbox.Scope{Sources: []string{"shop"}, Handlers: []string{"*"}}, []int64{f.source}, nil},
		{inbox.Scope{Sources: []string{"s?op", "x"}, Handlers: []string{"o*", "[ab]ooks"}}, []int64{f.source}, []int64{f.handler, other}},
		{inbox.Scope{Sources: []string{"shops"}, Handlers: []string{"book"}}, []int64{}, []int64{}},
	} {
		reach, err := f.Reach(t.Context(), test.scope)
		if err != nil || reach == nil {
			t.Fatalf("Reach(%+v) = %+v, %v", test.scope, reach, err)
		}
		if !slices.Equal(reach.Sources, test.sources) || (reach.Sources == nil) != (test.sources == nil) ||
			!slices.Equal(reach.Handlers, test.handlers) || (reach.Handlers == nil) != (test.handlers == nil) {
			t.Errorf("Reach(%+v) = %+v, want %v and %v", test.scope, reach, test.sources, test.handlers)
		}
	}
	if reach, err := f.Reach(t.Context(), inbox.Everything()); err != nil || reach != nil {
		t.Errorf("Reach of everything = %+v, %v, want nil", reach, err)
	}
}

// TestListsWithinReach: each list, with each filter and by pages of any length, holds what is left of the same list for
// everybody when what is out of reach is taken away by hand.
func TestListsWithinReach(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	other := f.history(t)
	bank := f.value(t, `INSERT INTO source (name, provider) VALUES ('bank', 'none') RETURNING id`)
	f.exec(t, `UPDATE inbox_message SET source_id = $1 WHERE id % 3 = 1`, bank)
	f.exec(t, `UPDATE inbox_key SET source_id = $1 WHERE id % 3 = 1`, bank)
	f.exec(t, `UPDATE delivery SET source_id = $1 WHERE id % 3 = 1`, bank)
	f.exec(t, `UPDATE outcome SET source_id = $1 WHERE id % 3 = 1`, bank)
	f.exec(t, `UPDATE attempt SET source_id = $1 WHERE id % 3 = 1`, bank)

	everything := messagesOf(t, f, inbox.Filter{}, 500)
	for name, reach := range map[string]*inbox.Reach{
		"one source":               {Sources: []int64{f.source}},
		"both sources":             {Sources: []int64{f.source, bank}},
		"one handler":              {Handlers: []int64{other}},
		"one of each":              {Sources: []int64{bank}, Handlers: []int64{f.handler}},
		"a source, and no handler": {Sources: []int64{bank}, Handlers: []int64{}},
		"nothing":                  {Sources: []int64{}, Handlers: []int64{}},
	} {
		filters := []inbox.Filter{
			{},
			{MessageType: "paid"},
			{BizKey: "order 1"},
			{OrderingKey: "cart 1"},
			{MessageID: "m03"},
			{From: time.Now().Add(-time.Hour)},
			{To: time.Now().Add(-time.Hour)},
			{ErrorClass: inbox.ClassTimeout},
			{ResponseStatus: 500},
			{ResponseStatus: 500, BizKey: "order 1"},
			{SourceID: f.source},
			{HandlerID: f.handler},
		}
		for _, status := range inbox.Statuses() {
			filters = append(filters, inbox.Filter{Status: status}, inbox.Filter{Status: status, MessageType: "refunded"}, inbox.Filter{Status: status, BizKey: "order 1"})
		}
		for _, filter := range filters {
			// What the filter chooses of all, limited; a status is that of what is left, so it is applied by hand.
			wide := filter
			wide.Status = ""
			var messages, deliveries []string
			chosen := map[int64]bool{}
			for _, m := range messagesOf(t, f, wide, 500) {
				chosen[m.ID] = true
			}
			for _, m := range everything {
				m := *m
				m.Deliveries = slices.Clone(m.Deliveries)
				m.Limit(reach)
				if !chosen[m.ID] || !reach.Source(m.SourceID) {
					continue
				}
				status := filter.Status == "" || m.Status == filter.Status || filter.Status == inbox.Discarded && m.Status == inbox.Done && m.Discarded
				if filter.HandlerID != 0 {
					status = slices.ContainsFunc(m.Deliveries, func(d inbox.DeliveryState) bool { return d.DeliveryID.Handler == filter.HandlerID })
				}
				if status {
					messages = append(messages, fmt.Sprintf("%d %s", m.ID, m.Status))
				}
			}
			for _, d := range deliveriesOf(t, f, filter, 500) {
				if reach.Source(d.SourceID) && reach.Handler(d.DeliveryID.Handler) {
					deliveries = append(deliveries, d.DeliveryID.String()+" "+string(d.Status))
				}
			}
			narrow := filter
			narrow.Within = reach
			for _, limit := range []int{2, 500} {
				var got []string
				if filter.ErrorClass == "" && filter.ResponseStatus == 0 { // filters of deliveries only
					for _, m := range messagesOf(t, f, narrow, limit) {
						got = append(got, fmt.Sprintf("%d %s", m.ID, m.Status))
					}
					if !slices.Equal(got, messages) {
						t.Errorf("%s: messages of %+v by %d = %q, want %q", name, filter, limit, got, messages)
					}
				}
				got = nil
				for _, d := range deliveriesOf(t, f, narrow, limit) {
					got = append(got, d.DeliveryID.String()+" "+string(d.Status))
				}
				if !slices.Equal(got, deliveries) {
					t.Errorf("%s: deliveries of %+v by %d = %q, want %q", name, filter, limit, got, deliveries)
				}
			}
		}

		attempts, err := f.ListAttempts(t.Context(), inbox.LedgerFilter{}, inbox.LedgerPosition{}, 500)
		if err != nil {
			t.Fatal(err)
		}
		outcomes, err := f.ListOutcomes(t.Context(), inbox.LedgerFilter{}, inbox.LedgerPosition{}, 500)
		if err != nil {
			t.Fatal(err)
		}
		bySource := map[string]int64{"shop": f.source, "bank": bank}
		attempts.Items = slices.DeleteFunc(attempts.Items, func(a inbox.AttemptEntry) bool {
			return !reach.Source(bySource[a.Source]) || !reach.Handler(a.DeliveryID.Handler)
		})
		outcomes.Items = slices.DeleteFunc(outcomes.Items, func(o inbox.OutcomeEntry) bool {
			return !reach.Source(bySource[o.Source]) || o.DeliveryID.Handler != 0 && !reach.Handler(o.DeliveryID.Handler)
		})
		some, err := f.ListAttempts(t.Context(), inbox.LedgerFilter{Within: reach}, inbox.LedgerPosition{}, 500)
		if err != nil || len(some.Items) != len(attempts.Items) || fmt.Sprint(some.Items) != fmt.Sprint(attempts.Items) {
			t.Errorf("%s: %d attempts, %v, want %d", name, len(some.Items), err, len(attempts.Items))
		}
		ends, err := f.ListOutcomes(t.Context(), inbox.LedgerFilter{Within: reach}, inbox.LedgerPosition{}, 500)
		if err != nil || len(ends.Items) != len(outcomes.Items) || fmt.Sprint(ends.Items) != fmt.Sprint(outcomes.Items) {
			t.Errorf("%s: %d outcomes, %v, want %d", name, len(ends.Items), err, len(outcomes.Items))
		}
		for _, limit := range []int{1, 50} {
			var got, want []int64
			for after, pages := (inbox.DeliveryID{}), 0; pages == 0 || after.Message != 0; pages++ {
				page, err := f.LookUp(t.Context(), reach, "order 1", after, limit)
				if err != nil || len(page.Items) > limit || pages > 50 {
					t.Fatalf("LookUp = %d items, %v, page %d", len(page.Items), err, pages)
				}
				for _, m := range page.Items {
					got = append(got, m.ID)
				}
				after = page.Next
			}
			for _, m := range everything {
				if m.BizKey == "order 1" && reach.Source(m.SourceID) {
					want = append(want, m.ID)
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: LookUp by %d = %v, want %v", name, limit, got, want)
			}
		}
	}
}

func messagesOf(t *testing.T, f *fixture, filter inbox.Filter, limit int) (list []*inbox.MessageState) {
	t.Helper()
	for after, pages := (inbox.DeliveryID{}), 0; pages == 0 || after.Message != 0; pages++ {
		page, err := f.ListMessages(t.Context(), filter, after, limit)
		if err != nil || len(page.Items) > limit || pages > 200 {
			t.Fatalf("ListMessages(%+v) = %d items, %v, page %d", filter, len(page.Items), err, pages)
		}
		list, after = append(list, page.Items...), page.Next
	}
	return list
}

func deliveriesOf(t *testing.T, f *fixture, filter inbox.Filter, limit int) (list []inbox.DeliveryState) {
	t.Helper()
	for after, pages := (inbox.DeliveryID{}), 0; pages == 0 || after.Message != 0; pages++ {
		page, err := f.ListDeliveries(t.Context(), filter, after, limit)
		if err != nil || len(page.Items) > limit || pages > 200 {
			t.Fatalf("ListDeliveries(%+v) = %d items, %v, page %d", filter, len(page.Items), err, pages)
		}
		list, after = append(list, page.Items...), page.Next
	}
	return list
}

// TestRareSourceAmongMany: a page of what few may see doesn't walk through what they may not.
func TestRareSourceAmongMany(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	bank := f.value(t, `INSERT INTO source (name, provider) VALUES ('bank', 'none') RETURNING id`)
	f.exec(t, `INSERT INTO inbox_message (id, received_at, source_id, message_id, message_type, content_type, headers, body)
SELECT n, now(), CASE WHEN n % 9000 = 7 THEN $1::bigint ELSE $2 END, n, 'paid', '', '', '' FROM generate_series(1, 20000) AS n`, bank, f.source)
	page, err := f.ListMessages(t.Context(), inbox.Filter{Within: &inbox.Reach{Sources: []int64{bank}}}, inbox.DeliveryID{}, 50)
	if err != nil || len(page.Items) != 3 || page.Next.Message != 0 {
		t.Errorf("ListMessages = %d items, next %v, %v, want all 3 on one page", len(page.Items), page.Next, err)
	}
}
