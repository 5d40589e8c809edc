package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stripe/stripe-go/v82/webhook"

	"github.com/inboxd/inboxd/providers"
)

// Tests of the whole gateway over HTTP: real requests, real PostgreSQL, real handlers.

func TestStripeGo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.start(t)
	const secret = "whsec_official"
	i.call(t, http.MethodPost, "/sources", map[string]any{"name": "stripe", "provider": "stripe", "secrets": []string{secret}}, nil)
	body := []byte(`{"id":"evt_1","object":"event","type":"charge.captured","data":{"object":{"id":"ch_1","amount":100.0}}}`)
	signed := webhook.GenerateTestSignedPayload(&webhook.UnsignedPayload{Payload: body, Secret: secret, Timestamp: time.Now()})

	for _, test := range []struct {
		name, signature string
		body            []byte
		want            int
	}{
		{"altered bytes", signed.Header, bytes.Replace(body, []byte("100.0"), []byte("100"), 1), http.StatusUnauthorized},
		{"a line break at the end", signed.Header, append(slices.Clone(body), '\n'), http.StatusUnauthorized},
		{"no signature", "", body, http.StatusUnauthorized},
		{"the official helper's request", signed.Header, body, http.StatusOK},
	} {
		request, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, i.public+"/in/stripe", bytes.NewReader(test.body))
		request.Header.Set("Stripe-Signature", test.signature)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		answer, _ := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if response.StatusCode != test.want {
			t.Errorf("%s: %d %s, want %d", test.name, response.StatusCode, answer, test.want)
		}
	}
	if n := w.count(t, `SELECT count(*) FROM inbox_message WHERE message_id = 'evt_1' AND message_type = 'charge.captured' AND body = $1`, body); n != 1 {
		t.Errorf("%d rows with the exact body, want 1", n)
	}
}

func TestEasyPostFixture(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.start(t)
	text, err := os.ReadFile("../../providers/testdata/vectors/easypost.json")
	if err != nil {
		t.Fatal(err)
	}
	type vector struct {
		Name    string
		Config  struct{ Secret string }
		Headers map[string]string
		Body    string `json:"body_base64"`
	}
	var vectors []vector
	if err := json.Unmarshal(text, &vectors); err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(vectors, func(v vector) bool { return v.Name == "published-fixture" })
	if at < 0 {
		t.Fatal("the published fixture is missing")
	}
	fixture := vectors[at]
	body, err := base64.StdEncoding.DecodeString(fixture.Body)
	if err != nil {
		t.Fatal(err)
	}
	i.call(t, http.MethodPost, "/sources", map[string]any{"name": "parcels", "provider": "easypost", "variant": "v1", "secrets": []string{fixture.Config.Secret}}, nil)
	request, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, i.public+"/in/parcels", bytes.NewReader(body))
	for name, value := range fixture.Headers {
		request.Header.Set(name, value)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Errorf("answered %d, want 200", response.StatusCode)
	}
	if n := w.count(t, `SELECT count(*) FROM inbox_message WHERE body = $1`, body); n != 1 {
		t.Errorf("%d rows with the exact body, want 1", n)
	}
}

func TestEqualMessagesAtOnce(t *testing.T) { // [C1, C2, C11]
	t.Parallel()
	w := newWorld(t)
	instances := []*instance{w.start(t), w.start(t)}
	registerShop(t, instances[0])
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	eventually(t, time.Second, "the source is known everywhere", func() bool {
		status, _, err := postShop(t.Context(), client, instances[1].public, "warm", []byte("{}"))
		return err == nil && status == http.StatusOK
	})

	const copies = 50
	var (
		wg        sync.WaitGroup
		start     = make(chan struct{})
		statuses  [copies]int
		headers   [copies]http.Header
		latencies [copies]time.Duration
	)
	for n := range copies {
		wg.Go(func() {
			<-start
			began := time.Now()
			var err error
			statuses[n], headers[n], err = postShop(t.Context(), client, instances[n%2].public, "the-one", []byte(`{"same":true}`))
			if err != nil {
				t.Error(err)
			}
			latencies[n] = time.Since(began)
		})
	}
	close(start)
	wg.Wait()
	firsts, ids := 0, map[string]bool{}
	for n := range copies {
		if statuses[n] != http.StatusOK {
			t.Errorf("copy %d was answered %d, want 200", n, statuses[n])
			continue
		}
		if headers[n].Get("Inbox-Duplicate") == "" {
			firsts++
		}
		ids[headers[n].Get("Inbox-Message")] = true
	}
	if firsts != 1 || len(ids) != 1 {
		t.Errorf("%d firsts and the messages %v, want one", firsts, ids)
	}
	if n := w.count(t, `SELECT count(*) FROM inbox_message WHERE message_id = 'the-one'`); n != 1 {
		t.Errorf("%d rows, want 1", n)
	}
	slices.Sort(latencies[:])
	// A figure for people; whether it is below 100 ms is for an idle machine to say.
	t.Logf("latency p50 %s, max %s", latencies[copies/2], latencies[copies-1])
	w.checkClean(t)
}

func TestOneRefusedRowOverHTTP(t *testing.T) { // [A9, A10]
	t.Parallel()
	w := newWorld(t)
	i := w.start(t)
	registerShop(t, i)
	w.exec(t, `ALTER TABLE inbox_message ADD CONSTRAINT no_poison CHECK (message_id <> 'poison')`)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	if status, _, err := postShop(t.Context(), client, i.public, "old", []byte("{}")); status != http.StatusOK {
		t.Fatal(status, err)
	}

	// Hold the first commits, so that the rest gather in batches.
	tx, err := w.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }() // else a failure would wait for the commits that wait for it
	if _, err := tx.Exec(t.Context(), `LOCK TABLE inbox_key IN SHARE MODE`); err != nil {
		t.Fatal(err)
	}
	want := map[string]int{"old": http.StatusOK, "poison": http.StatusUnprocessableEntity}
	ids := []string{"a", "b", "old", "poison", "a", "c"}
	for n := range 30 {
		ids = append(ids, fmt.Sprint("more-", n))
	}
	statuses := make([]int, len(ids))
	var wg sync.WaitGroup
	for n, id := range ids {
		wg.Go(func() { statuses[n], _, _ = postShop(context.Background(), client, i.public, id, []byte("{}")) })
	}
	eventually(t, 5*time.Second, "the first batch waits for the lock", func() bool {
		return w.count(t, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) >= 1
	})
	eventually(t, 5*time.Second, "the others are queued", func() bool {
		return i.metric(t, "inboxd_intake_bytes") == float64(2*len(ids))
	})
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	for n, id := range ids {
		expected := http.StatusOK
		if status, ok := want[id]; ok {
			expected = status
		}
		if statuses[n] != expected {
			t.Errorf("%s was answered %d, want %d", id, statuses[n], expected)
		}
	}
	if n := w.count(t, `SELECT count(*) FROM inbox_message`); n != len(ids)-2 {
		t.Errorf("%d rows, want %d: all but the poison and the second a", n, len(ids)-2)
	}
	if got := i.metric(t, `inboxd_requests_rejected_total{reason="refused",source="shop"}`); got != 1 {
		t.Errorf("%v refused, want 1", got)
	}
	w.checkClean(t)
}

func TestHandlerRegisteredUnderTraffic(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	instances := []*instance{w.start(t), w.start(t)}
	registerShop(t, instances[0])
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	eventually(t, time.Second, "the source is known everywhere", func() bool {
		status, _, err := postShop(t.Context(), client, instances[1].public, "warm", []byte("{}"))
		return err == nil && status == http.StatusOK
	})

	type sending struct {
		id    string
		began time.Time
	}
	var (
		mu   sync.Mutex
		all  []sending
		wg   sync.WaitGroup
		stop = make(chan struct{})
	)
	for sender := range 8 {
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				s := sending{fmt.Sprintf("m-%d-%d", sender, n), time.Now()}
				status, header, err := postShop(context.Background(), client, instances[sender%2].public, s.id, []byte("{}"))
				if err != nil || status != http.StatusOK || header.Get("Inbox-Duplicate") != "" {
					t.Errorf("%s: %d, duplicate %q, %v, want 200 and new", s.id, status, header.Get("Inbox-Duplicate"), err)
					return
				}
				mu.Lock()
				all = append(all, s)
				mu.Unlock()
			}
		})
	}
	registered := map[string]time.Time{}
	handler := newDownstream(t, nil)
	for n := range 10 {
		name := fmt.Sprint("handler-", n)
		registerHandler(t, instances[n%2], name, handler.URL, map[string]any{"concurrency": 1})
		registered[name] = time.Now()
		had := func() int { mu.Lock(); defer mu.Unlock(); return len(all) }
		before := had()
		eventually(t, 10*time.Second, "traffic flows", func() bool { return had() > before+30 })
	}
	close(stop)
	wg.Wait()
	rows, _ := w.pool.Query(t.Context(), `SELECT h.name || ' ' || m.message_id FROM delivery_status AS s
JOIN inbox_message AS m USING (id) JOIN handler AS h ON h.id = s.handler_id`)
	pairs, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]bool, len(pairs))
	for _, pair := range pairs {
		got[pair] = true
	}
	late := 0
	for name, at := range registered {
		for _, s := range all {
			if s.began.Before(at) {
				continue
			}
			late++
			if !got[name+" "+s.id] {
				t.Errorf("%s was registered before %s was sent, and did not get it", name, s.id)
			}
		}
	}
	t.Logf("%d messages, %d pairs of a handler and a message that came after it", len(all), late)
}

func TestExactBytes(t *testing.T) { // [D1, D3, D4, D5]
	t.Parallel()
	w := newWorld(t)
	type seen struct {
		header http.Header
		body   []byte
	}
	arrived := make(chan seen, 1)
	handler := newDownstream(t, func(_ http.ResponseWriter, r *http.Request, body []byte) { arrived <- seen{r.Header.Clone(), body} })
	i := w.start(t)
	registerShop(t, i)
	registerHandler(t, i, "books", handler.URL, nil)

	var zipped bytes.Buffer
	zip := gzip.NewWriter(&zipped)
	_, _ = zip.Write([]byte(`{"zipped":true}`))
	_ = zip.Close()
	for n, test := range []struct {
		name, contentType, encoding string
		body                        []byte
	}{
		{"NUL in a value", "application/json", "", []byte(`{"a":"x\u0000y"}`)},
		{"NUL in a key", "application/json", "", []byte(`{"a\u0000":1}`)},
		{"a raw NUL", "application/json", "", []byte("{\"a\":\"\x00\"}")},
		{"a lone surrogate", "application/json", "", []byte(`{"a":"\ud800"}`)},
		{"invalid UTF-8", "application/json", "", []byte("{\"a\":\"\xff\xfe\"}")},
		{"odd numbers and spacing", "application/json", "", []byte("{ \"z\" : 1.0e+2,\"a\":136.0,\"big\":123456789012345678901234567890 }\r\n")},
		{"keys out of order, one twice", "application/json", "", []byte(`{"b":1,"a":2,"b":3}`)},
		{"text", "text/plain; charset=iso-8859-1", "", []byte("gr\xfc\xdfe")},
		{"XML", "application/xml", "", []byte(`<?xml version="1.0"?><a b='c'/>`)},
		{"binary", "application/octet-stream", "", []byte{0, 1, 2, 0xff, 0xfe, 0}},
		{"gzip as it came", "application/json", "gzip", zipped.Bytes()},
		{"multipart", `multipart/form-data; boundary="x"`, "", []byte("--x\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--x--\r\n")},
		{"a form with repeated fields", "application/x-www-form-urlencoded", "", []byte("a=1&a=2&b=")},
		{"no content type", "", "", []byte("bare")},
		{"nothing", "application/json", "", nil},
		{"half a megabyte", "application/json", "", []byte(`{"pad":"` + strings.Repeat("x", 512<<10) + `"}`)},
	} {
		id := fmt.Sprint("m-", n)
		request := shopRequest(t.Context(), i.public, id, test.body)
		request.Header.Del("Content-Type")
		if test.contentType != "" {
			request.Header.Set("Content-Type", test.contentType)
		}
		if test.encoding != "" {
			request.Header.Set("Content-Encoding", test.encoding)
		}
		request.Header.Set("X-Odd", "caf\xe9")
		request.Header.Set("Authorization", "Bearer of-the-provider")
		request.Header.Set("Cookie", "a=b")
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != http.StatusOK {
			t.Errorf("%s: answered %d", test.name, response.StatusCode)
			continue
		}
		var got seen
		select {
		case got = <-arrived:
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: did not arrive", test.name)
		}
		if !bytes.Equal(got.body, test.body) {
			t.Errorf("%s: the handler got %q, want %q", test.name, got.body, test.body)
		}
		if got.header.Get("Content-Type") != test.contentType || got.header.Get("Content-Encoding") != test.encoding {
			t.Errorf("%s: Content-Type %q, Content-Encoding %q", test.name, got.header.Get("Content-Type"), got.header.Get("Content-Encoding"))
		}
		// The original signature travels along and still fits the bytes.
		if got.header.Get("X-Signature") != request.Header.Get("X-Signature") || got.header.Get("X-Odd") != "caf\xe9" {
			t.Errorf("%s: headers %v", test.name, got.header)
		}
		if got.header.Get("Authorization") != "" || got.header.Get("Cookie") != "" {
			t.Errorf("%s: credentials were forwarded", test.name)
		}
		if got.header.Get("Inbox-Message-Id") != id || got.header.Get("Inbox-Source") != "shop" || got.header.Get("Inbox-Message-Type") != "paid" {
			t.Errorf("%s: headers %v", test.name, got.header)
		}
		if stored := w.count(t, `SELECT count(*) FROM inbox_message WHERE message_id = $1 AND body = $2`, id, append([]byte{}, test.body...)); stored != 1 {
			t.Errorf("%s: %d rows with the exact bytes, want 1", test.name, stored)
		}
	}
	if n := w.count(t, `SELECT count(*) FROM inbox_message WHERE encode(headers, 'escape') ~* '(bearer|cookie)'`); n != 0 {
		t.Errorf("%d rows keep credentials", n)
	}
}

func TestStripeSignatureVerifiesAtTheHandler(t *testing.T) { // [D3]
	t.Parallel()
	w := newWorld(t)
	const secret = "whsec_of_the_shop"
	verified := make(chan error, 1)
	handler := newDownstream(t, func(_ http.ResponseWriter, r *http.Request, body []byte) {
		verified <- webhook.ValidatePayload(body, r.Header.Get("Stripe-Signature"), secret)
	})
	i := w.start(t)
	i.call(t, http.MethodPost, "/sources", map[string]any{"name": "stripe", "provider": "stripe", "secrets": []string{secret}}, nil)
	registerHandler(t, i, "books", handler.URL, nil)
	var out bytes.Buffer
	if status := run(t.Context(), []string{"send", "stripe", "--to", i.public, "--database-url", w.url, "--secret-keys", testKeys}, &out, &out); status != 0 {
		t.Fatalf("inboxd send ended with %d: %s", status, out.String())
	}
	if err := <-verified; err != nil {
		t.Errorf("the original signature at the handler: %v", err)
	}
	if status := run(t.Context(), []string{"send", "stripe", "--forge", "--to", i.public, "--database-url", w.url, "--secret-keys", testKeys}, &out, &out); status != 0 {
		t.Errorf("inboxd send --forge ended with %d: %s", status, out.String())
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.start(t, func(cfg *gatewayConfig) { cfg.Settings.BodyLimit = 1000 })
	registerShop(t, i)
	exact := bytes.Repeat([]byte("x"), 1000)
	for _, test := range []struct {
		name    string
		path    string
		body    []byte
		chunked bool
		method  string
		want    int
	}{
		{"at the limit", "", exact, false, "", http.StatusOK},
		{"at the limit, in chunks", "", exact, true, "", http.StatusOK},
		{"one byte more", "", append(slices.Clone(exact), 'x'), false, "", http.StatusRequestEntityTooLarge},
		{"one byte more, in chunks", "", append(slices.Clone(exact), 'x'), true, "", http.StatusRequestEntityTooLarge},
		{"an unknown source", "/in/nobody", nil, false, "", http.StatusNotFound},
		{"another path", "/api/v1/sources", nil, false, "", http.StatusNotFound},
		{"another method", "", nil, false, http.MethodPut, http.StatusMethodNotAllowed},
	} {
		request := shopRequest(t.Context(), i.public, test.name, test.body)
		if test.chunked {
			request.Body, request.ContentLength = io.NopCloser(struct{ io.Reader }{bytes.NewReader(test.body)}), -1
		}
		if test.path != "" {
			request.URL.Path = test.path
		}
		if test.method != "" {
			request.Method = test.method
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		_ = response.Body.Close()
		if response.StatusCode != test.want {
			t.Errorf("%s: %d, want %d", test.name, response.StatusCode, test.want)
		}
	}
	if n := w.count(t, `SELECT count(*) FROM inbox_message WHERE octet_length(body) = 1000`); n != 2 {
		t.Errorf("%d rows, want the 2 at the limit and nothing cut short", n)
	}
	if n := w.count(t, `SELECT count(*) FROM inbox_message`); n != 2 {
		t.Errorf("%d rows, want 2", n)
	}
}

func TestItemsOfOneRequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var mu sync.Mutex
	bodies := map[string]string{}
	handler := newDownstream(t, func(_ http.ResponseWriter, r *http.Request, body []byte) {
		mu.Lock()
		defer mu.Unlock()
		bodies[r.Header.Get("Inbox-Message-Id")] = string(body)
	})
	i := w.start(t)
	i.call(t, http.MethodPost, "/sources", map[string]any{
		"name": "shop", "provider": "hmac", "secrets": []string{shopSecret},
		"settings": map[string]any{
			"signature": map[string]any{"in": "header:X-Signature"}, "items": "json:events", "message_id": []string{"{json:id}"},
		},
	}, nil)
	registerHandler(t, i, "books", handler.URL, nil)
	body := []byte(`{"events":[ {"id":"a", "n":1.0},{"id":"b"} , {"id":"a","n":2}]}`)
	status, header, err := postShop(t.Context(), &http.Client{}, i.public, "ignored", body)
	if err != nil || status != http.StatusOK {
		t.Fatal(status, err)
	}
	if ids := strings.Split(header.Get("Inbox-Message"), ","); len(ids) != 3 || ids[0] != ids[2] {
		t.Errorf("messages %v, want three, the third a duplicate of the first", ids)
	}
	eventually(t, 10*time.Second, "both are delivered", func() bool { return w.count(t, `SELECT count(*) FROM outcome WHERE result = 'DONE'`) == 2 })
	mu.Lock()
	defer mu.Unlock()
	if bodies["a"] != `{"id":"a", "n":1.0}` || bodies["b"] != `{"id":"b"}` {
		t.Errorf("the handler got %q", bodies)
	}
	w.checkClean(t)
}

func TestFailedMessageIsRetriedByUs(t *testing.T) { // [A16]
	t.Parallel()
	w := newWorld(t)
	var mu sync.Mutex
	broken := true
	handler := newDownstream(t, func(rw http.ResponseWriter, _ *http.Request, _ []byte) {
		mu.Lock()
		defer mu.Unlock()
		if broken {
			rw.WriteHeader(http.StatusInternalServerError)
		}
	})
	i := w.start(t)
	registerShop(t, i)
	registerHandler(t, i, "books", handler.URL, map[string]any{"max_retry_count": 1, "backoff_base": "10ms", "backoff_cap": "10ms"})
	client := &http.Client{}
	if status, _, err := postShop(t.Context(), client, i.public, "m1", []byte("{}")); status != http.StatusOK {
		t.Fatal(status, err)
	}
	eventually(t, 10*time.Second, "it is parked", func() bool {
		return w.count(t, `SELECT count(*) FROM delivery WHERE status = 'MANUAL_REQUIRED'`) == 1
	})
	// The provider sends it again: a duplicate, and still parked.
	if status, header, err := postShop(t.Context(), client, i.public, "m1", []byte("{}")); status != http.StatusOK || header.Get("Inbox-Duplicate") == "" {
		t.Errorf("%d, duplicate %q, %v", status, header.Get("Inbox-Duplicate"), err)
	}
	if n := w.count(t, `SELECT count(*) FROM delivery WHERE status = 'MANUAL_REQUIRED'`); n != 1 {
		t.Errorf("%d parked after the provider sent it again, want 1", n)
	}
	mu.Lock()
	broken = false
	mu.Unlock()
	i.call(t, http.MethodPost, "/jobs", map[string]any{"action": "retry", "filter": map[string]any{"handler": "books"}}, nil)
	eventually(t, 10*time.Second, "it is DONE", func() bool { return w.count(t, `SELECT count(*) FROM outcome WHERE result = 'DONE'`) == 1 })
	w.checkClean(t)
}

func TestSlowHandlerHoldsUpNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	release := make(chan struct{})
	hanging := newDownstream(t, func(_ http.ResponseWriter, r *http.Request, _ []byte) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	quick := newDownstream(t, nil)
	i := w.start(t)
	registerShop(t, i)
	registerHandler(t, i, "hanging", hanging.URL, map[string]any{"concurrency": 2, "timeout": "60s"})
	registerHandler(t, i, "quick", quick.URL, nil)
	client := &http.Client{}
	for n := range 50 {
		if status, _, err := postShop(t.Context(), client, i.public, fmt.Sprint("m-", n), []byte("{}")); status != http.StatusOK {
			t.Fatal(status, err)
		}
	}
	eventually(t, 10*time.Second, "the quick handler has everything", func() bool { return quick.distinct() == 50 })
	if got := hanging.distinct(); got != 2 {
		t.Errorf("%d requests at the hanging handler, want its concurrency of 2", got)
	}
	close(release)
	eventually(t, 10*time.Second, "the hanging one too, once it answers", func() bool { return hanging.distinct() == 50 })
}

func TestChangesAreEffectiveEverywhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one, other := w.start(t), w.start(t)
	registerShop(t, one)
	client := &http.Client{}
	status := func(id string) int {
		got, _, err := postShop(t.Context(), client, other.public, id, []byte("{}"))
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	eventually(t, time.Second, "a new source", func() bool { return status("m1") == http.StatusOK })
	one.call(t, http.MethodPatch, "/sources/shop", map[string]any{"secrets": []string{"another secret"}}, nil)
	eventually(t, time.Second, "a changed secret", func() bool { return status("m2") == http.StatusUnauthorized })
	one.call(t, http.MethodPatch, "/sources/shop", map[string]any{"secrets": []string{"another secret", shopSecret}}, nil)
	eventually(t, time.Second, "a second secret", func() bool { return status("m3") == http.StatusOK })
	one.call(t, http.MethodPatch, "/sources/shop", map[string]any{"enabled": false}, nil)
	eventually(t, time.Second, "a disabled source", func() bool { return status("m4") == http.StatusNotFound })
	one.call(t, http.MethodPatch, "/sources/shop", map[string]any{"enabled": true}, nil)
	eventually(t, time.Second, "an enabled source", func() bool { return status("m5") == http.StatusOK })
	one.call(t, http.MethodDelete, "/sources/shop", nil, nil)
	eventually(t, time.Second, "a deleted source", func() bool { return status("m6") == http.StatusNotFound })
}

func TestSendSignsEverySheet(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.start(t)
	catalog, err := providers.Embedded()
	if err != nil {
		t.Fatal(err)
	}
	sources := map[string]map[string]any{
		"stripe":            {"secrets": []string{"whsec_x"}},
		"easypost":          {"secrets": []string{"sécret"}},
		"shippo":            {"variant": "hmac", "secrets": []string{"s"}},
		"standard-webhooks": {"secrets": []string{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}},
		"hmac":              {"secrets": []string{"s"}, "settings": map[string]any{"signature": map[string]any{"in": "header:X-Signature"}, "message_id": []string{"{json:id}"}}},
		"none":              {"settings": map[string]any{"message_id": []string{"{json:id}"}}},
	}
	for _, name := range catalog.Names() {
		source, ok := sources[name]
		if !ok {
			t.Errorf("%s: no source here to try it with", name)
			continue
		}
		source["name"], source["provider"] = name, name
		i.call(t, http.MethodPost, "/sources", source, nil)
		var out bytes.Buffer
		args := []string{"send", name, "--count", "2", "--to", i.public, "--database-url", w.url, "--secret-keys", testKeys}
		if status := run(t.Context(), args, &out, &out); status != 0 {
			t.Errorf("%s: inboxd send ended with %d: %s", name, status, out.String())
		}
	}
	if n := w.count(t, `SELECT count(*) FROM inbox_message`); n != 2*len(catalog.Names()) {
		t.Errorf("%d rows, want two of each sheet", n)
	}
}
