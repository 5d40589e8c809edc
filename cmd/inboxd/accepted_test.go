package main

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/inboxd/inboxd/client"
)

// TestUnroutedIsSeenAndReplayed: a message that no handler wants is acknowledged, and kept where an operator finds it, sees
// why, and can deliver it once a handler is there. [A1]
func TestUnroutedIsSeenAndReplayed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.start(t)
	registerShop(t, i)
	post := func(id string) string {
		t.Helper()
		status, header, err := postShop(t.Context(), http.DefaultClient, i.public, id, []byte("{}"))
		if err != nil || status != http.StatusOK {
			t.Fatalf("post %s = %d, %v", id, status, err)
		}
		return header.Get("Inbox-Message")
	}
	story := func(id string) client.Timeline {
		t.Helper()
		var story client.Timeline
		i.call(t, http.MethodGet, "/messages/"+id+"/timeline", nil, &story)
		return story
	}
	alone := post("m1") // there is no handler at all
	i.call(t, http.MethodPost, "/sources", map[string]any{"name": "another", "provider": "none"}, nil)
	registerHandler(t, i, "refunds", "http://127.0.0.1:9", map[string]any{"message_types": []string{"refunded"}})
	registerHandler(t, i, "elsewhere", "http://127.0.0.1:9", map[string]any{"sources": []string{"another"}})
	unwanted := post("m2") // there are some, for something else

	var messages client.MessageList
	i.call(t, http.MethodGet, "/messages?status=UNROUTED", nil, &messages)
	if len(messages.Items) != 2 || messages.Items[0].ID != unwanted || messages.Items[1].ID != alone {
		t.Errorf("the UNROUTED messages are %+v", messages.Items)
	}
	var outcomes client.OutcomeList
	if i.call(t, http.MethodGet, "/outcomes?result=UNROUTED", nil, &outcomes); len(outcomes.Items) != 2 {
		t.Errorf("the UNROUTED outcomes are %+v", outcomes.Items)
	}
	for _, id := range []string{alone, unwanted} {
		s := story(id)
		if !tells(s, "unrouted", "no handler subscribed") {
			t.Errorf("message %s: the events are %+v, want one that says why nobody got it", id, s.Events)
		}
		reasons := make(map[string]string)
		for _, n := range s.NotRouted {
			reasons[n.Handler] = n.Reason
		}
		if !strings.Contains(reasons["refunds"], `"paid"`) || !strings.Contains(reasons["elsewhere"], "source shop") || len(reasons) != 2 {
			t.Errorf("message %s: the handlers didn't get it because of %q", id, reasons)
		}
	}

	// A replay has nowhere to go yet, and says so.
	if _, err := (operators{url: i.admin, token: i.token}).call(t.Context(), http.MethodPost, "/messages/"+alone+"/replay", map[string]any{}, nil); err == nil {
		t.Error("a message was replayed to nobody")
	}
	handler := newDownstream(t, nil)
	registerHandler(t, i, "books", handler.URL, nil)
	for _, id := range []string{alone, unwanted} {
		i.call(t, http.MethodPost, "/messages/"+id+"/replay", map[string]any{}, nil)
		eventually(t, 10*time.Second, "the message is DONE", func() bool {
			var m client.MessageDetail
			i.call(t, http.MethodGet, "/messages/"+id, nil, &m)
			return m.Message.Status == "DONE" && len(m.Deliveries) == 1 && m.Deliveries[0].Handler == "books"
		})
		if s := story(id); !tells(s, "unrouted", "") || !tells(s, "done", "") {
			t.Errorf("message %s: the events are %+v, want how it was UNROUTED and how it was DONE", id, s.Events)
		}
	}
	if got := handler.distinct(); got != 2 {
		t.Errorf("the handler got %d messages, want 2", got)
	}
	if i.call(t, http.MethodGet, "/messages?status=UNROUTED", nil, &messages); len(messages.Items) != 0 {
		t.Errorf("still UNROUTED: %+v", messages.Items)
	}
	w.checkClean(t)
}

// tells reports whether a timeline has an event of a kind whose detail has the words.
func tells(s client.Timeline, kind, words string) bool {
	for _, e := range s.Events {
		if string(e.Kind) == kind && (words == "" || e.Detail != nil && strings.Contains(*e.Detail, words)) {
			return true
		}
	}
	return false
}

// TestNothingIsAcceptedWithoutARow: what a source can't take is never answered 2xx; what is answered 2xx is a row. [A2]
func TestNothingIsAcceptedWithoutARow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.start(t)
	registerShop(t, i)
	post := func(to, id string) int {
		t.Helper()
		request := shopRequest(t.Context(), i.public, id, []byte("{}"))
		request.URL.Path = "/in/" + to
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		return response.StatusCode
	}
	rows := func() int {
		return w.count(t, `SELECT count(*) FROM inbox_message`) + w.count(t, `SELECT count(*) FROM inbox_key`)
	}

	if got := post("nobody", "m1"); got != http.StatusNotFound || rows() != 0 {
		t.Errorf("an unknown source: %d and %d rows", got, rows())
	}
	i.call(t, http.MethodPatch, "/sources/shop", map[string]any{"enabled": false}, nil)
	if got := post("shop", "m1"); got != http.StatusNotFound || rows() != 0 {
		t.Errorf("a disabled source: %d and %d rows", got, rows())
	}
	i.call(t, http.MethodPatch, "/sources/shop", map[string]any{"enabled": true}, nil)
	if got := post("shop", "m1"); got != http.StatusOK || rows() != 2 { // a message and its key
		t.Errorf("enabled again: %d and %d rows; what was refused before must be taken", got, rows())
	}
	i.call(t, http.MethodDelete, "/sources/shop", nil, nil)
	for _, id := range []string{"m1", "m2"} {
		if got := post("shop", id); got != http.StatusNotFound || rows() != 2 {
			t.Errorf("a deleted source: %d and %d rows", got, rows())
		}
	}

	// The same while the source comes and goes under traffic, seen from an instance that hears of it late.
	other := w.start(t)
	registerShop(t, i)
	load := startLoad(8, func() string { return other.public })
	defer load.stop()
	refused := func() int {
		load.mu.Lock()
		defer load.mu.Unlock()
		return load.statuses[http.StatusNotFound]
	}
	for round := range 4 {
		before := load.count()
		eventually(t, 20*time.Second, "messages are accepted", func() bool { return load.count() > before+20 })
		before = refused()
		if round%2 == 0 {
			i.call(t, http.MethodPatch, "/sources/shop", map[string]any{"enabled": false}, nil)
		} else {
			i.call(t, http.MethodDelete, "/sources/shop", nil, nil)
		}
		eventually(t, 20*time.Second, "messages are refused", func() bool { return refused() > before+20 })
		if round%2 == 0 {
			i.call(t, http.MethodPatch, "/sources/shop", map[string]any{"enabled": true}, nil)
		} else {
			registerShop(t, i)
		}
	}
	load.stop()
	if lost := load.missing(t, w); len(lost) > 0 {
		t.Errorf("%d of %d accepted messages have no row: %v", len(lost), load.count(), lost[:min(5, len(lost))])
	}
	w.checkClean(t)
}
