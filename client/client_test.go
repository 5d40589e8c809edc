package client_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/inboxd/inboxd/client"
)

// TestRead reads what a server can answer.
func TestRead(t *testing.T) {
	t.Parallel()
	var elsewhere atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	defer other.Close()
	answers := map[string]func(w http.ResponseWriter){
		"fine": func(w http.ResponseWriter) { fmt.Fprint(w, `{"name": "fine", "provider": "none"}`) },
		"gone": func(w http.ResponseWriter) { w.WriteHeader(http.StatusNoContent) },
		"problem": func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/problem+json; charset=utf-8")
			w.WriteHeader(http.StatusUnprocessableEntity)
			fmt.Fprint(w, `{"type": "urn:inboxd:problem:invalid", "title": "Wrong", "status": 422, "detail": "So it is.", "errors": [{"field": "url", "detail": "is missing"}]}`)
		},
		"proxy":    func(w http.ResponseWriter) { http.Error(w, "<html>", http.StatusBadGateway) },
		"redirect": func(w http.ResponseWriter) { w.Header().Set("Location", other.URL); w.WriteHeader(http.StatusFound) },
		"cut":      func(w http.ResponseWriter) { fmt.Fprint(w, `{"name": "cu`) },
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("Authorization"); got != "Bearer the token" {
			t.Errorf("Authorization = %q", got)
		}
		name, ok := strings.CutPrefix(r.URL.Path, "/api/v1/sources/")
		if !ok {
			t.Errorf("the path is %s", r.URL.Path)
			return
		}
		answers[name](w)
	}))
	defer server.Close()
	for _, test := range []struct{ answer, wantErr string }{
		{"fine", ""},
		{"gone", ""},
		{"problem", "Wrong: So it is.\n  url is missing"},
		{"proxy", "answered 502 Bad Gateway without a problem document"},
		{"redirect", "answered 302 Found without a problem document"},
		{"cut", "read the answer: unexpected EOF"},
	} {
		api, err := client.New(server.URL+"/", "the token")
		if err != nil {
			t.Fatal(err)
		}
		source, err := client.Read[client.Source](api.GetSource(t.Context(), test.answer))
		switch {
		case test.wantErr == "" && err != nil, test.wantErr != "" && (err == nil || !strings.Contains(err.Error(), test.wantErr)):
			t.Errorf("%s: %v, want %q", test.answer, err, test.wantErr)
		case test.answer == "fine" && source.Name != "fine":
			t.Errorf("the source is %+v", source)
		}
		refusal, ok := errors.AsType[*client.Error](err)
		if ok != (test.answer == "problem") || ok && (refusal.Status != 422 || refusal.Type != client.ProblemInvalid) {
			t.Errorf("%s: the refusal is %+v", test.answer, refusal)
		}
	}
	if elsewhere.Load() != 0 {
		t.Error("the token went where the server pointed to")
	}
}

// stream answers the requests for a tail, one after the other.
func stream(t *testing.T, answers ...func(w http.ResponseWriter, lastEventID string)) *client.Client {
	t.Helper()
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := int(asked.Add(1))
		if n > len(answers) {
			t.Errorf("request %d for %d answers", n, len(answers))
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		answers[n-1](w, r.Header.Get("Last-Event-ID"))
	}))
	t.Cleanup(server.Close)
	api, err := client.New(server.URL, "token")
	if err != nil {
		t.Fatal(err)
	}
	return api
}

func message(id string) string { return `event: message` + "\n" + `data: {"id":"` + id + `"}` + "\n" }

// TestFollow is cut off in the middle of an event, refused for a time, and at last for good.
func TestFollow(t *testing.T) {
	t.Parallel()
	var resumed []string
	api := stream(
		t, func(w http.ResponseWriter, _ string) {
			fmt.Fprint(w, "retry: 1000\nid: a\n\n: a comment\n\n"+message("1")+"id: b\n\nevent: delivery\ndata: {\"id\":\"1.1\"}\nid: c\n\nid: d\n\n"+message("2"))
		}, func(w http.ResponseWriter, last string) {
			resumed = append(resumed, last)
			fmt.Fprint(w, message("2")+"id:e\n\n"+message("3")+"id: f\n")
		}, func(w http.ResponseWriter, last string) {
			resumed = append(resumed, last)
			w.WriteHeader(http.StatusServiceUnavailable)
		}, func(w http.ResponseWriter, last string) {
			resumed = append(resumed, last)
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, `{"type": "urn:inboxd:problem:unauthorized", "title": "No", "status": 401}`)
		},
	)
	var got []string
	cuts := 0
	err := api.Follow(t.Context(), client.TailParams{}, func(error) { cuts++ }, func(e client.TailEvent) error {
		if e.Message != nil {
			got = append(got, e.Message.ID)
		} else {
			got = append(got, e.Delivery.ID)
		}
		return nil
	})
	if refusal, ok := errors.AsType[*client.Error](err); !ok || refusal.Status != http.StatusUnauthorized {
		t.Errorf("Follow = %v, want the refusal", err)
	}
	if want := []string{"1", "1.1", "2"}; !slices.Equal(got, want) {
		t.Errorf("the events are %q, want %q", got, want)
	}
	if want := []string{"d", "e", "e"}; !slices.Equal(resumed, want) || cuts != 3 {
		t.Errorf("resumed after %q with %d cuts, want %q", resumed, cuts, want)
	}
}

// TestFollowEnds by itself where resuming can't help, and when it is told to.
func TestFollowEnds(t *testing.T) {
	t.Parallel()
	stop := errors.New("enough")
	one := func(w http.ResponseWriter, _ string) {
		fmt.Fprint(w, message("1")+"id: a\n\n"+message("2")+"id: b\n\n")
	}
	never := func(err error) { t.Errorf("resuming after %v", err) }
	take := func(client.TailEvent) error { return stop }
	if err := stream(t, one).Follow(t.Context(), client.TailParams{}, never, take); !errors.Is(err, stop) {
		t.Errorf("Follow = %v, want what take returned", err)
	}
	odd := func(w http.ResponseWriter, _ string) { fmt.Fprint(w, "event: surprise\ndata: {}\nid: a\n\n") }
	if err := stream(t, odd).Follow(t.Context(), client.TailParams{}, never, take); err == nil || errors.Is(err, stop) {
		t.Errorf("Follow of an event that it doesn't know = %v", err)
	}
	html := func(w http.ResponseWriter, _ string) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, "<html>")
	}
	if err := stream(t, html).Follow(t.Context(), client.TailParams{}, never, take); err == nil {
		t.Error("Follow of a page = nil")
	}
	ctx, cancel := context.WithCancel(t.Context())
	waits := func(w http.ResponseWriter, _ string) {
		fmt.Fprint(w, message("1")+"id: a\n\n")
		_ = http.NewResponseController(w).Flush()
		<-ctx.Done()
	}
	err := stream(t, waits).Follow(ctx, client.TailParams{}, never, func(client.TailEvent) error { cancel(); return nil })
	if err != nil {
		t.Errorf("Follow until its context is done = %v", err)
	}
}
