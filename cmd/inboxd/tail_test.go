package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/inboxd/inboxd/client"
)

// stream is an open GET /tail.
type stream struct {
	*http.Response
	lines *bufio.Scanner
}

// event is what came from it; kind is empty for an id alone.
type event struct{ kind, data, id string }

// openTail calls GET /tail. It doesn't have to be answered with a stream.
func (i *instance) openTail(t *testing.T, query, lastEventID string) *stream {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, i.admin+"/api/v1/tail"+query, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+i.token)
	if lastEventID != "" {
		request.Header.Set("Last-Event-ID", lastEventID)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = response.Body.Close() })
	s := &stream{Response: response, lines: bufio.NewScanner(response.Body)}
	s.lines.Buffer(nil, 1<<20)
	return s
}

// next reads an event; ok is false at the stream's end.
func (s *stream) next() (e event, ok bool) {
	for s.lines.Scan() {
		switch field, value, _ := strings.Cut(s.lines.Text(), ": "); field {
		case "event":
			e.kind = value
		case "data":
			e.data = value
		case "id":
			e.id = value
		case "":
			return e, true
		}
	}
	return e, false
}

// told reads n events, and what they tell of messages by their ids.
func (s *stream) told(t *testing.T, n int) (told []string, events []event) {
	t.Helper()
	for len(events) < n {
		e, ok := s.next()
		if !ok {
			t.Fatalf("the stream has ended after %q: %v", told, s.lines.Err())
		}
		if e.kind == "" {
			continue
		}
		var data struct {
			MessageID string `json:"message_id"`
			Status    string
		}
		if err := json.Unmarshal([]byte(e.data), &data); err != nil {
			t.Fatal(err)
		}
		if e.kind == "message" {
			data.Status = "stored"
		}
		told, events = append(told, data.MessageID+" "+data.Status), append(events, e)
	}
	return told, events
}

func (i *instance) post(t *testing.T, ids ...string) {
	t.Helper()
	for _, id := range ids {
		if status, _, err := postShop(t.Context(), http.DefaultClient, i.public, id, []byte(`{"body of":"`+id+`"}`)); status != http.StatusOK {
			t.Fatalf("%s: %d %v", id, status, err)
		}
	}
}

// TestTailStream reads a stream, is cut off after its first event, and goes on at another instance.
func TestTailStream(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i, other := w.start(t), w.start(t)
	registerShop(t, i)
	down := newDownstream(t, nil)
	registerHandler(t, i, "books", down.URL, nil)

	s := i.openTail(t, "?source=shop", "")
	if s.StatusCode != http.StatusOK || s.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("GET /tail = %s, %s", s.Status, s.Header.Get("Content-Type"))
	}
	begin, ok := s.next()
	if !ok || begin.id == "" || begin.kind != "" {
		t.Errorf("a stream begins with %+v", begin)
	}
	i.post(t, "first")
	told, events := s.told(t, 2)
	if want := []string{"first stored", "first DONE"}; !slices.Equal(told, want) {
		t.Errorf("the stream tells %q, want %q", told, want)
	}
	if text := fmt.Sprint(events); strings.Contains(text, "body of") || strings.Contains(text, shopSecret) {
		t.Errorf("the stream tells too much: %s", text)
	}
	if e, ok := s.next(); !ok || e.kind != "" || e.id == "" {
		t.Errorf("without an event the stream tells %+v, want an id within 15 s", e)
	}
	_ = s.Body.Close()

	other.post(t, "second")
	s = other.openTail(t, "?source=shop", events[0].id)
	if told, _ := s.told(t, 3); !slices.Equal(told, []string{"first DONE", "second stored", "second DONE"}) {
		t.Errorf("after the first event the stream tells %q", told)
	}
	s = i.openTail(t, "?source=shop", begin.id)
	if told, _ := s.told(t, 4); told[0] != "first stored" || told[3] != "second DONE" {
		t.Errorf("from its beginning the stream tells %q", told)
	}
	s = i.openTail(t, "?status=DONE&message_type=&since="+time.Now().Add(-time.Hour).UTC().Format(time.RFC3339), "")
	if told, _ := s.told(t, 4); !slices.Equal(told, []string{"first stored", "second stored", "first DONE", "second DONE"}) {
		t.Errorf("since an hour ago the stream tells %q", told)
	}

	for query, want := range map[string]int{
		"?source=shop&status=DONE": http.StatusBadRequest, "?since=yesterday": http.StatusBadRequest, "?limit=5": http.StatusBadRequest,
		"?source=none": http.StatusUnprocessableEntity, "?status=NONE": http.StatusUnprocessableEntity,
	} {
		if s := i.openTail(t, query, events[0].id); s.StatusCode != want {
			t.Errorf("GET /tail%s = %s, want %d", query, s.Status, want)
		}
	}

	s = i.openTail(t, "", "")
	w.exec(t, `UPDATE token SET revoked_at = now()`)
	for ok := true; ok; _, ok = s.next() {
	}
	if err := s.lines.Err(); err != nil {
		t.Errorf("a stream whose token is revoked ends with %v", err)
	}
}

// TestTailLimit opens as many streams as an instance has, which leaves the rest of the API alone. A token that is for some
// sources only leaves some of them to others.
func TestTailLimit(t *testing.T) {
	t.Parallel()
	i := newWorld(t).start(t)
	var made struct{ Secret string }
	i.call(t, http.MethodPost, "/tokens", map[string]any{"name": "some", "role": "read", "sources": []string{"shop"}}, &made)
	some := *i
	some.token = made.Secret
	var streams []*stream
	for _, test := range []struct {
		who  *instance
		most int
	}{{&some, 4}, {i, 12}} {
		for n := 0; ; n++ {
			s := test.who.openTail(t, "", "")
			if s.StatusCode == http.StatusOK {
				streams = append(streams, s)
				continue
			}
			text, _ := io.ReadAll(s.Body)
			if s.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(text), "too-many-streams") || s.Header.Get("Retry-After") == "" {
				t.Errorf("one stream more than there are = %s %s", s.Status, text)
			}
			if n != test.most {
				t.Errorf("%d streams, want %d", n, test.most)
			}
			break
		}
	}
	i.call(t, http.MethodGet, "/messages", nil, nil)
	_ = streams[0].Body.Close()
	eventually(t, 20*time.Second, "the place of a stream that has ended is free", func() bool {
		return some.openTail(t, "", "").StatusCode == http.StatusOK
	})
}

// TestTailCommand follows a tail over a killed instance and a stopped one: every message comes once.
func TestTailCommand(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	addresses := freeAddresses(t, 2)
	p := w.startProcess(t, addresses[0], addresses[1])
	registerShop(t, &p.instance)
	var out, complaints lockedBuffer
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{"tail", "--since", "1h", "--json", "--status", "UNROUTED", "--url", p.admin, "--token", w.token}, &out, &complaints)
	}()
	want := []string{}
	check := func(ids ...string) {
		t.Helper()
		want = append(want, ids...)
		var got []string
		eventually(t, 60*time.Second, "the tail tells all messages", func() bool {
			got = nil
			for line := range strings.Lines(out.String()) {
				var e client.TailEvent
				if err := json.Unmarshal([]byte(line), &e); err != nil || e.Message == nil {
					t.Fatalf("%q: %v", line, err)
				}
				got = append(got, e.Message.MessageID)
			}
			return len(got) >= len(want)
		})
		if !slices.Equal(got, want) {
			t.Errorf("the tail tells %q, want %q", got, want)
		}
	}
	p.post(t, "before")
	check("before")
	p.kill()
	p = w.startProcess(t, addresses[0], addresses[1], "--drain-delay", "0s")
	p.post(t, "after a kill")
	check("after a kill")

	p.signal(syscall.SIGTERM)
	select {
	case <-p.exited: // an open stream doesn't hold it
	case <-time.After(12 * time.Second):
		t.Error("the process doesn't stop while a stream is open")
	}
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("it ended with status %d", code)
	}
	p = w.startProcess(t, addresses[0], addresses[1])
	p.post(t, "after a stop")
	check("after a stop")
	cancel()
	if status := <-ended; status != 0 || !strings.Contains(complaints.String(), "resuming") {
		t.Errorf("inboxd tail ended with %d: %s", status, complaints.String())
	}

	// Before it has begun, and when it can't go on, it fails.
	if status := run(t.Context(), []string{"tail", "--url", p.admin, "--token", "wrong"}, &out, &out); status != exitRefused {
		t.Errorf("a wrong token: %d, want %d", status, exitRefused)
	}
	if status := run(t.Context(), []string{"tail", "--since", "yesterday", "--url", p.admin, "--token", w.token}, &out, &out); status != 1 {
		t.Errorf("--since yesterday: %d, want 1", status)
	}
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	api, err := client.New(p.admin, w.token)
	if err != nil {
		t.Fatal(err)
	}
	stop := errors.New("enough")
	if err := api.Follow(ctx, client.TailParams{Since: new(time.Now().Add(-time.Hour))}, func(error) {}, func(client.TailEvent) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("Follow = %v, want %v", err, stop)
	}
}
