package processor

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/inboxd/inboxd/inbox"
	"github.com/inboxd/inboxd/internal/egress"
)

// handlerAt returns a handler of that URL with one secret and a backoff of exactly base·2^n: too short for
// jitter.
func handlerAt(url string) *inbox.Handler {
	return &inbox.Handler{
		ID: 3, Name: "orders", URL: url, Secrets: []inbox.Secret{secretOf("the handler's key")},
		Timeout: 30 * time.Second, Backoff: inbox.Backoff{Base: 2 * time.Nanosecond, Cap: time.Hour},
		PermanentStatuses: []int{410, 422},
	}
}

func testMessage(body string) (inbox.Claim, *inbox.Message) {
	id := inbox.DeliveryID{Message: 7, Handler: 3}
	return inbox.Claim{DeliveryID: id, SourceID: 1, ClaimSeq: 41, RetryCount: 2, MaxRetryCount: 5, ReplayNo: 1},
		&inbox.Message{
			ID: 7, SourceID: 1, MessageID: "evt_1", MessageType: "order.paid", BizKey: "1001",
			ContentType: "application/json", Body: []byte(body),
		}
}

func newForwarder(t *testing.T, cfg ForwarderConfig) *Forwarder {
	t.Helper()
	f := NewForwarder(cfg)
	t.Cleanup(f.Close)
	return f
}

// show prints a result. Its own String is that of its delivery's id.
func show(r inbox.Result) string {
	return fmt.Sprintf("{verdict %d, class %q, status %d, delay %v, took %v, error %q, body %q}",
		r.Verdict, r.Class, r.ResponseStatus, r.Delay, r.Duration, r.Error, r.ResponseBody)
}

// forward makes one attempt of a small message.
func forward(t *testing.T, h *inbox.Handler) inbox.Result {
	t.Helper()
	c, m := testMessage("{}")
	return newForwarder(t, ForwarderConfig{}).Forward(t.Context(), h, "shop", c, m)
}

// received is what a handler got.
type received struct {
	header http.Header
	body   []byte
	length int64
	path   string
}

// record serves 204 and passes on what it gets.
func record(t *testing.T) (url string, got <-chan received) {
	t.Helper()
	requests := make(chan received, 16)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("reading the request: %v", err)
		}
		requests <- received{r.Header.Clone(), body, r.ContentLength, r.Method + " " + r.URL.RequestURI()}
		w.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(srv.Close)
	return srv.URL, requests
}

func TestForwardHeaders(t *testing.T) {
	t.Parallel()
	url, requests := record(t)
	f := newForwarder(t, ForwarderConfig{Version: "1.2"})
	h := handlerAt(url + "/hook?a=b%20c")
	c, m := testMessage(`{"a":1}`)
	m.Headers = []byte("X-Shopify-Hmac-Sha256: abc=\r\nx-lower: kept\r\nX-Twice: 1\r\nX-Twice: 2\r\n" +
		"User-Agent: Shopify/1\r\n")

	r := f.Forward(t.Context(), h, "shop", c, m)
	if r.Verdict != inbox.VerdictDone || r.ResponseStatus != 204 || r.Class != "" || r.Error != "" || r.Claim != c || r.Duration <= 0 {
		t.Fatalf("result = %s", show(r))
	}
	got := <-requests
	if got.path != "POST /hook?a=b%20c" || string(got.body) != `{"a":1}` || got.length != 7 {
		t.Errorf("got %s with %d bytes: %s", got.path, got.length, got.body)
	}
	for name, want := range map[string]string{
		"content-type": "application/json", "user-agent": "inboxd/1.2", "inbox-original-user-agent": "Shopify/1",
		"webhook-id": "msg_7", "inbox-source": "shop", "inbox-message-id": "evt_1", "inbox-message-type": "order.paid",
		"inbox-biz-key": "1001", "inbox-attempt": "3", "inbox-fence": "41", "inbox-replay": "1",
		"x-shopify-hmac-sha256": "abc=", "x-lower": "kept",
	} {
		if values := got.header.Values(name); !slices.Equal(values, []string{want}) {
			t.Errorf("%s = %q, want %q", name, values, want)
		}
	}
	if values := got.header.Values("x-twice"); !slices.Equal(values, []string{"1", "2"}) {
		t.Errorf("x-twice = %q, want 1 and 2", values)
	}
	if got.header.Get("accept-encoding") != "" {
		t.Errorf("accept-encoding = %q, want none", got.header.Get("accept-encoding"))
	}
	if err := verify(t, h.Secrets[0], got.header, got.body); err != nil {
		t.Error(err)
	}
	if at, err := strconv.ParseInt(got.header.Get("webhook-timestamp"), 10, 64); err != nil || time.Since(time.Unix(at, 0)).Abs() > time.Minute {
		t.Errorf("webhook-timestamp = %d, %v, want now", at, err)
	}

	// The id is that of the message, whatever attempt or handler it is.
	c.RetryCount, c.ReplayNo, c.ClaimSeq, m.BizKey, m.MessageType, m.ContentType = 0, 0, 99, "", "", ""
	f.Forward(t.Context(), h, "shop", c, m)
	got = <-requests
	for name, want := range map[string]string{"webhook-id": "msg_7", "inbox-attempt": "1", "inbox-fence": "99", "inbox-replay": "0"} {
		if value := got.header.Get(name); value != want {
			t.Errorf("%s = %q, want %q", name, value, want)
		}
	}
	for _, name := range []string{"inbox-biz-key", "inbox-message-type", "content-type"} {
		if values := got.header.Values(name); len(values) != 0 {
			t.Errorf("%s = %q, want none", name, values)
		}
	}
}

func TestForwardProviderHeaders(t *testing.T) {
	t.Parallel()
	url, requests := record(t)
	f := newForwarder(t, ForwarderConfig{})
	for _, tc := range []struct {
		name, line string
		want       string // the header to look for
		values     []string
	}{
		{"hop-by-hop", "Keep-Alive: timeout=5", "keep-alive", nil},
		{"transfer coding", "Transfer-Encoding: chunked", "transfer-encoding", nil},
		{"trailer", "Trailer: X-A", "trailer", nil},
		{"te", "TE: trailers", "te", nil},
		{"upgrade", "Upgrade: h2c", "upgrade", nil},
		{"expect", "Expect: 100-continue", "expect", nil},
		{"named by Connection", "X-Hop: 1\r\nConnection: close, x-hop", "x-hop", nil},
		{"Connection itself", "Connection: x-hop", "connection", nil},
		{"credentials", "Authorization: Bearer t", "authorization", nil},
		{"proxy credentials", "proxy-authorization: Basic t", "proxy-authorization", nil},
		{"cookie", "Cookie: a=b", "cookie", nil},
		{"credentials after WSGI", "Proxy_Authorization: t", "proxy_authorization", nil},
		{"length", "Content-Length: 99", "content-length", []string{"2"}},
		{"length after CGI", "Content_Length: 99", "content_length", nil},
		{"accept-encoding", "Accept-Encoding: gzip", "accept-encoding", nil},
		{"content type twice", "Content-Type: text/evil", "content-type", []string{"application/json"}},
		{"content encoding", "Content-Encoding: br", "content-encoding", []string{"br"}},
		{"another's webhook-id", "webhook-id: theirs", "webhook-id", []string{"msg_7"}},
		{"another's webhook-id is kept", "WEBHOOK-ID: theirs", "inbox-original-webhook-id", []string{"theirs"}},
		{"another's signature is kept", "Webhook-Signature: v1,x", "inbox-original-webhook-signature", []string{"v1,x"}},
		{"another's timestamp is kept", "Webhook-Timestamp: 1", "inbox-original-webhook-timestamp", []string{"1"}},
		{"other webhook-*", "Webhook-Secret-Version: 2", "webhook-secret-version", []string{"2"}},
		{"forged", "Inbox-Fence: 1", "inbox-fence", []string{"41"}},
		{"forged is kept apart", "Inbox-Fence: 1", "inbox-original-inbox-fence", []string{"1"}},
		{"forged original", "Inbox-Original-Webhook-Id: f", "inbox-original-webhook-id", nil},
		{"forged for WSGI", "Inbox_Fence: 1", "inbox_fence", nil},
		{"forged for Apache", "Webhook.Id: 1", "webhook.id", nil},
		{"underscore otherwise", "X_Fine: 1", "x_fine", []string{"1"}},
		{"not UTF-8", "X-Latin: caf\xe9 \xff\xfe", "x-latin", []string{"caf\xe9 \xff\xfe"}},
		{"tab", "X-Tab: a\tb", "x-tab", []string{"a\tb"}},
		{"outer white space", "X-Space:\t a \t", "x-space", []string{"a"}},
		{"empty", "X-Empty:", "x-empty", []string{""}},
		{"NUL", "X-Nul: a\x00b", "x-nul", nil},
		{"DEL", "X-Del: a\x7fb", "x-del", nil},
		{"carriage return", "X-Cr: a\rInbox-Fence: 1", "x-cr", nil},
		{"line feed", "X-Lf: a\nX-Injected: 1", "x-lf", []string{"a"}},
		{"bad name", "X Bad: a", "x bad", nil},
		{"no colon", "X-Bad", "x-bad", nil},
		{"no name", ": a", "", nil},
		{"idempotency key", "Idempotency-Key: k", "idempotency-key", []string{"k"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, m := testMessage("{}")
			m.Headers = []byte("X-First: 1\r\n" + tc.line + "\r\nX-Last: 1\r\n")
			if r := f.Forward(t.Context(), handlerAt(url), "shop", c, m); r.Verdict != inbox.VerdictDone {
				t.Fatalf("result = %s", show(r))
			}
			got := <-requests
			if values := got.header.Values(tc.want); !slices.Equal(values, tc.values) {
				t.Errorf("%s = %q, want %q", tc.want, values, tc.values)
			}
			if got.header.Get("x-first") != "1" || got.header.Get("x-last") != "1" {
				t.Errorf("the other headers are gone: %v", got.header)
			}
		})
	}
}

// TestForwardOwnValues: what inboxd itself can't put into a header is left out.
func TestForwardOwnValues(t *testing.T) {
	t.Parallel()
	url, requests := record(t)
	f := newForwarder(t, ForwarderConfig{})
	c, m := testMessage("{}")
	m.BizKey, m.MessageType, m.MessageID, m.ContentType = "a\r\nInbox-Fence: 1", "t\x01", "订单 1", "text/plain\x00"
	if r := f.Forward(t.Context(), handlerAt(url), "shop", c, m); r.Verdict != inbox.VerdictDone {
		t.Fatalf("result = %s", show(r))
	}
	got := <-requests
	for name, want := range map[string]string{
		"inbox-biz-key": "", "inbox-message-type": "", "content-type": "", "inbox-message-id": "订单 1", "inbox-fence": "41",
	} {
		if value := got.header.Get(name); value != want {
			t.Errorf("%s = %q, want %q", name, value, want)
		}
	}
}

func TestForwardBodies(t *testing.T) {
	t.Parallel()
	var zipped bytes.Buffer
	zw := gzip.NewWriter(&zipped)
	_, _ = zw.Write([]byte(`{"zipped":true}`))
	_ = zw.Close()

	for _, tc := range []struct{ name, contentType, headers, body string }{
		{"form", "application/x-www-form-urlencoded", "", "a=1&a=2&b="},
		{"gzip", "application/json", "Content-Encoding: gzip\r\n", zipped.String()},
		{"NUL and invalid UTF-8", "application/octet-stream", "", "\x00\xff\xfe{\"a\":\"\\u0000\"}\x00"},
		{"multipart", `multipart/form-data; boundary="x"`, "", "--x\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--x--\r\n"},
		{"spaces in JSON", "application/json; charset=utf-8", "", "{ \"b\" : 1 ,\r\n\"a\":1.0 }\n"},
		{"empty", "", "", ""},
		{"large", "text/plain", "", strings.Repeat("0123456789abcdef", 1<<17)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			url, requests := record(t)
			h := handlerAt(url)
			c, m := testMessage(tc.body)
			m.ContentType, m.Headers = tc.contentType, []byte(tc.headers)
			if r := newForwarder(t, ForwarderConfig{}).Forward(t.Context(), h, "shop", c, m); r.Verdict != inbox.VerdictDone {
				t.Fatalf("result = %s", show(r))
			}
			got := <-requests
			if string(got.body) != tc.body || got.length != int64(len(tc.body)) {
				t.Errorf("body = %.50q with length %d, want %.50q", got.body, got.length, tc.body)
			}
			if got.header.Get("content-type") != tc.contentType {
				t.Errorf("content-type = %q, want %q", got.header.Get("content-type"), tc.contentType)
			}
			if want := strings.HasPrefix(tc.headers, "Content-Encoding: gzip"); (got.header.Get("content-encoding") == "gzip") != want {
				t.Errorf("content-encoding = %q", got.header.Get("content-encoding"))
			}
			if err := verify(t, h.Secrets[0], got.header, got.body); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestForwardRotation: while a secret is rotated, a handler that knows the old or the new one accepts.
func TestForwardRotation(t *testing.T) {
	t.Parallel()
	url, requests := record(t)
	f := newForwarder(t, ForwarderConfig{})
	h := handlerAt(url)
	before, after := h.Secrets[0], secretOf("the new key")
	c, m := testMessage("{}")
	for _, tc := range []struct {
		name        string
		secrets     []inbox.Secret
		old, newish bool
	}{
		{"before", []inbox.Secret{before}, true, false},
		{"while", []inbox.Secret{before, after}, true, true},
		{"after", []inbox.Secret{after}, false, true},
	} {
		h.Secrets = tc.secrets
		f.Forward(t.Context(), h, "shop", c, m)
		got := <-requests
		if n := len(strings.Fields(got.header.Get("webhook-signature"))); n != len(tc.secrets) {
			t.Errorf("%s: %d signatures, want %d", tc.name, n, len(tc.secrets))
		}
		if err := verify(t, before, got.header, got.body); (err == nil) != tc.old {
			t.Errorf("%s: the old secret verifies: %v, want %v", tc.name, err, tc.old)
		}
		if err := verify(t, after, got.header, got.body); (err == nil) != tc.newish {
			t.Errorf("%s: the new secret verifies: %v, want %v", tc.name, err, tc.newish)
		}
	}
}

// TestForwardOriginalSignature: a handler that puts the provider's headers back can check its signature.
func TestForwardOriginalSignature(t *testing.T) {
	t.Parallel()
	provider := secretOf("the provider's key")
	s, err := newSigner(provider)
	if err != nil {
		t.Fatal(err)
	}
	c, m := testMessage(`{"n":1}`)
	m.Headers = fmt.Appendf(nil, "Webhook-Id: evt_1\r\nWebhook-Timestamp: 1700000000\r\nWebhook-Signature: %s\r\n",
		sign(nil, []*signer{s}, []byte("evt_1.1700000000."), m.Body))

	url, requests := record(t)
	newForwarder(t, ForwarderConfig{}).Forward(t.Context(), handlerAt(url), "shop", c, m)
	got := <-requests
	original := http.Header{}
	for name, values := range got.header {
		if name, ok := strings.CutPrefix(name, "Inbox-Original-"); ok {
			original[name] = values
		}
	}
	if err := verify(t, provider, original, got.body); err != nil {
		t.Error(err)
	}
}

func TestForwardTraceparent(t *testing.T) {
	t.Parallel()
	url, requests := record(t)
	f := newForwarder(t, ForwarderConfig{})
	form := regexp.MustCompile(`^00-([0-9a-f]{32})-([0-9a-f]{16})-0([01])$`)
	const trace, span = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	for _, tc := range []struct {
		name, lines string
		kept        bool
		flag        string
	}{
		{"none", "", false, "1"},
		{"sampled", "Traceparent: 00-" + trace + "-" + span + "-01\r\nTracestate: a=1\r\n", true, "1"},
		{"not sampled", "Traceparent: 00-" + trace + "-" + span + "-00\r\nTracestate: a=1\r\n", true, "0"},
		{"random flag, not sampled", "Traceparent: 00-" + trace + "-" + span + "-02\r\nTracestate: a=1\r\n", true, "0"},
		{"all flags", "Traceparent: 00-" + trace + "-" + span + "-ff\r\nTracestate: a=1\r\n", true, "1"},
		{"flags with a letter", "Traceparent: 00-" + trace + "-" + span + "-0a\r\nTracestate: a=1\r\n", true, "0"},
		{"later version", "Traceparent: cc-" + trace + "-" + span + "-01-what\r\nTracestate: a=1\r\n", true, "1"},
		{"version ff", "Traceparent: ff-" + trace + "-" + span + "-01\r\nTracestate: a=1\r\n", false, "1"},
		{"more of version 00", "Traceparent: 00-" + trace + "-" + span + "-01-what\r\n", false, "1"},
		{"upper case", "Traceparent: 00-" + strings.ToUpper(trace) + "-" + span + "-01\r\n", false, "1"},
		{"zero trace", "Traceparent: 00-" + strings.Repeat("0", 32) + "-" + span + "-01\r\n", false, "1"},
		{"zero span", "Traceparent: 00-" + trace + "-" + strings.Repeat("0", 16) + "-01\r\n", false, "1"},
		{"two", strings.Repeat("Traceparent: 00-"+trace+"-"+span+"-00\r\n", 2), false, "1"},
		{"garbage", "Traceparent: yes\r\nTracestate: a=1\r\n", false, "1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, m := testMessage("{}")
			m.Headers = []byte(tc.lines)
			f.Forward(t.Context(), handlerAt(url), "shop", c, m)
			got := <-requests
			parts := form.FindStringSubmatch(strings.Join(got.header.Values("traceparent"), "|"))
			if parts == nil {
				t.Fatalf("traceparent = %q", got.header.Values("traceparent"))
			}
			if (parts[1] == trace) != tc.kept || parts[3] != tc.flag {
				t.Errorf("traceparent = %s, want trace kept %v, flag %s", parts[0], tc.kept, tc.flag)
			}
			if parts[2] == span || strings.Trim(parts[1], "0") == "" || strings.Trim(parts[2], "0") == "" {
				t.Errorf("traceparent = %s, want a new span", parts[0])
			}
			if state := got.header.Get("tracestate"); (state == "a=1") != tc.kept {
				t.Errorf("tracestate = %q, want kept %v", state, tc.kept)
			}
		})
	}
}

func TestForwardVerdicts(t *testing.T) {
	t.Parallel()
	const backoff = 8 * time.Nanosecond // after the second retry
	later := func(d time.Duration) string { return time.Now().Add(d).UTC().Format(http.TimeFormat) }
	for _, tc := range []struct {
		name       string
		status     int
		retryAfter string
		verdict    inbox.Verdict
		class      inbox.Class
		min, max   time.Duration // of the delay
	}{
		{"200", 200, "", inbox.VerdictDone, "", 0, 0},
		{"202", 202, "", inbox.VerdictDone, "", 0, 0},
		{"204", 204, "", inbox.VerdictDone, "", 0, 0},
		{"299", 299, "60", inbox.VerdictDone, "", 0, 0},
		{"500", 500, "", inbox.VerdictRetry, inbox.ClassStatus, backoff, backoff},
		{"404", 404, "", inbox.VerdictRetry, inbox.ClassStatus, backoff, backoff},
		{"permanent", 410, "", inbox.VerdictPermanent, inbox.ClassStatus, 0, 0},
		{"permanent with Retry-After", 422, "60", inbox.VerdictPermanent, inbox.ClassStatus, 0, 0},
		{"not modified", 304, "", inbox.VerdictRetry, inbox.ClassRedirect, backoff, backoff},
		{"429", 429, "", inbox.VerdictRetry, inbox.ClassStatus, backoff, backoff},
		{"429, seconds", 429, "120", inbox.VerdictRetry, inbox.ClassStatus, 2 * time.Minute, 2 * time.Minute},
		{"503, seconds", 503, "120", inbox.VerdictRetry, inbox.ClassStatus, 2 * time.Minute, 2 * time.Minute},
		{"500, seconds", 500, "120", inbox.VerdictRetry, inbox.ClassStatus, backoff, backoff},
		{"at once", 429, "0", inbox.VerdictRetry, inbox.ClassStatus, backoff, backoff},
		{"date", 503, later(10 * time.Minute), inbox.VerdictRetry, inbox.ClassStatus, 9 * time.Minute, 10 * time.Minute},
		{"date over", 503, later(-10 * time.Minute), inbox.VerdictRetry, inbox.ClassStatus, backoff, backoff},
		{"date beyond the cap", 503, later(48 * time.Hour), inbox.VerdictRetry, inbox.ClassStatus, time.Hour, time.Hour},
		{"beyond the cap", 429, "86400", inbox.VerdictRetry, inbox.ClassStatus, time.Hour, time.Hour},
		{"overflow of a duration", 429, "9223372037", inbox.VerdictRetry, inbox.ClassStatus, time.Hour, time.Hour},
		{"overflow of an integer", 429, strings.Repeat("9", 40), inbox.VerdictRetry, inbox.ClassStatus, time.Hour, time.Hour},
		{"garbage", 429, "soon", inbox.VerdictRetry, inbox.ClassStatus, backoff, backoff},
		{"negative", 429, "-5", inbox.VerdictRetry, inbox.ClassStatus, backoff, backoff},
		{"fraction", 429, "1.5", inbox.VerdictRetry, inbox.ClassStatus, backoff, backoff},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if tc.retryAfter != "" {
					w.Header().Set("Retry-After", tc.retryAfter)
				}
				w.WriteHeader(tc.status)
				if tc.status != 204 && tc.status != 304 {
					_, _ = io.WriteString(w, "because\x00\xff")
				}
			}))
			defer srv.Close()
			r := forward(t, handlerAt(srv.URL))
			if r.Verdict != tc.verdict || r.Class != tc.class || r.ResponseStatus != tc.status {
				t.Errorf("result = %s, want verdict %d, class %q", show(r), tc.verdict, tc.class)
			}
			if r.Delay < tc.min || r.Delay > tc.max {
				t.Errorf("delay = %v, want %v to %v", r.Delay, tc.min, tc.max)
			}
			if failed := tc.verdict != inbox.VerdictDone; failed != (r.Error != "") {
				t.Errorf("error = %q", r.Error)
			}
			if want := tc.verdict != inbox.VerdictDone && tc.status != 304; want != (string(r.ResponseBody) == "because\x00\xff") {
				t.Errorf("response body = %q", r.ResponseBody)
			}
		})
	}
}

// TestRetryAfterBackoff: a Retry-After never makes it sooner than the backoff.
func TestRetryAfterBackoff(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	defer srv.Close()
	h := handlerAt(srv.URL)
	h.Backoff = inbox.Backoff{Base: 10 * time.Second, Cap: time.Hour}
	if r := forward(t, h); r.Delay < 40*time.Second || r.Delay > 44*time.Second {
		t.Errorf("delay = %v, want 40 s and jitter", r.Delay)
	}
}

func TestRetryAfterDates(t *testing.T) {
	t.Parallel()
	now := time.Date(1994, 11, 6, 8, 49, 7, 0, time.UTC)
	for _, tc := range []struct {
		value string
		want  time.Duration
	}{
		// The three forms of RFC 9110 section 5.6.7.
		{"Sun, 06 Nov 1994 08:49:37 GMT", 30 * time.Second},
		{"Sunday, 06-Nov-94 08:49:37 GMT", 30 * time.Second},
		{"Sun Nov  6 08:49:37 1994", 30 * time.Second},
		{"Sun, 06 Nov 1994 08:49:07 GMT", 0},
		{"Sun, 06 Nov 1994 08:00:00 GMT", 0},
		{"9223372036", 9223372036 * time.Second},
		{"9223372037", math.MaxInt64},
		{"", 0},
		{"+5", 0},
		{"5s", 0},
	} {
		if got := retryAfter(tc.value, now); got != tc.want {
			t.Errorf("retryAfter(%q) = %v, want %v", tc.value, got, tc.want)
		}
	}
}

func TestForwardRedirect(t *testing.T) {
	t.Parallel()
	var followed atomic.Int64
	for _, status := range []int{301, 302, 303, 307, 308} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/" {
				followed.Add(1)
				return
			}
			http.Redirect(w, r, "/elsewhere?token=s3cret", status)
		}))
		r := forward(t, handlerAt(srv.URL))
		srv.Close()
		if r.Verdict != inbox.VerdictRetry || r.Class != inbox.ClassRedirect || r.ResponseStatus != status || strings.Contains(r.Error, "s3cret") {
			t.Errorf("%d: result = %s", status, show(r))
		}
	}
	if n := followed.Load(); n != 0 {
		t.Errorf("%d redirects were followed", n)
	}
}

// serveRaw listens and gives each connection, once a request was read from it, to answer. accepted counts the
// connections.
func serveRaw(t *testing.T, answer func(net.Conn, *http.Request)) (url string, accepted *atomic.Int64) {
	t.Helper()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	accepted = new(atomic.Int64)
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			accepted.Add(1)
			serving.Go(func() {
				defer conn.Close()
				br := bufio.NewReader(conn)
				for {
					req, err := http.ReadRequest(br)
					if err != nil {
						return
					}
					if _, err := io.Copy(io.Discard, req.Body); err != nil {
						return
					}
					answer(conn, req)
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		serving.Wait()
	})
	return "http://" + ln.Addr().String(), accepted
}

func reset(conn net.Conn) {
	_ = conn.(*net.TCPConn).SetLinger(0)
	_ = conn.Close()
}

func TestForwardBrokenAnswers(t *testing.T) {
	t.Parallel()
	write := func(conn net.Conn, text string) { _, _ = io.WriteString(conn, text) }
	for _, tc := range []struct {
		name    string
		answer  func(net.Conn, *http.Request)
		verdict inbox.Verdict
		class   inbox.Class
		status  int
		body    string
	}{
		{"closed", func(conn net.Conn, _ *http.Request) { _ = conn.Close() }, inbox.VerdictRetry, inbox.ClassConnection, 0, ""},
		{"reset", func(conn net.Conn, _ *http.Request) { reset(conn) }, inbox.VerdictRetry, inbox.ClassConnection, 0, ""},
		{"reset within the headers", func(conn net.Conn, _ *http.Request) {
			write(conn, "HTTP/1.1 200 OK\r\nX-A")
			reset(conn)
		}, inbox.VerdictRetry, inbox.ClassConnection, 0, ""},
		{"failure, reset within the body", func(conn net.Conn, _ *http.Request) {
			write(conn, "HTTP/1.1 500 Oh\r\nContent-Length: 100\r\n\r\npart")
			_ = conn.Close()
		}, inbox.VerdictRetry, inbox.ClassStatus, 500, "part"},
		{"success, closed within the body", func(conn net.Conn, _ *http.Request) {
			write(conn, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart")
			_ = conn.Close()
		}, inbox.VerdictDone, "", 200, ""},
		{"no HTTP", func(conn net.Conn, _ *http.Request) {
			write(conn, "220 smtp ready\r\n")
			_ = conn.Close()
		}, inbox.VerdictRetry, inbox.ClassConnection, 0, ""},
		{"the request sent back", func(conn net.Conn, r *http.Request) {
			_ = r.Write(conn)
			_ = conn.Close()
		}, inbox.VerdictRetry, inbox.ClassConnection, 0, ""},
		{"the URL as a header", func(conn net.Conn, r *http.Request) {
			write(conn, "HTTP/1.1 200 OK\r\n"+r.URL.RequestURI()+"\r\n\r\n")
			_ = conn.Close()
		}, inbox.VerdictRetry, inbox.ClassConnection, 0, ""},
		{"the URL as the length", func(conn net.Conn, r *http.Request) {
			write(conn, "HTTP/1.1 200 OK\r\nContent-Length: "+r.URL.RequestURI()+"\r\n\r\n")
			_ = conn.Close()
		}, inbox.VerdictRetry, inbox.ClassConnection, 0, ""},
		{"too many headers", func(conn net.Conn, _ *http.Request) {
			write(conn, "HTTP/1.1 200 OK\r\n"+strings.Repeat("X-A: 0123456789\r\n", 20_000)+"\r\n")
			_ = conn.Close()
		}, inbox.VerdictRetry, inbox.ClassConnection, 0, ""},
		{"another protocol", func(conn net.Conn, _ *http.Request) {
			write(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n")
			_, _ = io.Copy(io.Discard, conn)
		}, inbox.VerdictRetry, inbox.ClassStatus, 101, ""},
		{"preliminary answers first", func(conn net.Conn, _ *http.Request) {
			write(conn, "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		}, inbox.VerdictDone, "", 200, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			url, _ := serveRaw(t, tc.answer)
			f := newForwarder(t, ForwarderConfig{})
			defer f.Close()
			c, m := testMessage(`{"p":"PAYLOAD"}`)
			r := f.Forward(t.Context(), handlerAt(url+"/hook?token=QUERY"), "shop", c, m)
			if r.Verdict != tc.verdict || r.Class != tc.class || r.ResponseStatus != tc.status || string(r.ResponseBody) != tc.body {
				t.Errorf("result = %s, want verdict %d, class %q, status %d, body %q", show(r), tc.verdict, tc.class, tc.status, tc.body)
			}
			if strings.Contains(r.Error, "QUERY") || strings.Contains(r.Error, "PAYLOAD") || strings.Contains(r.Error, "hook") {
				t.Errorf("error = %q", r.Error)
			}
			if (r.Error == "") != (tc.verdict == inbox.VerdictDone) {
				t.Errorf("error = %q", r.Error)
			}
		})
	}
}

// TestForwardOnce: a provider's Idempotency-Key doesn't let the transport send an attempt twice when a kept
// connection breaks.
func TestForwardOnce(t *testing.T) {
	t.Parallel()
	var requests atomic.Int64
	url, _ := serveRaw(t, func(conn net.Conn, _ *http.Request) {
		if requests.Add(1) == 2 {
			_ = conn.Close()
			return
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	})
	f := newForwarder(t, ForwarderConfig{})
	defer f.Close()
	c, m := testMessage("{}")
	m.Headers = []byte("Idempotency-Key: a\r\nX-Idempotency-Key: b\r\n")
	for i, want := range []inbox.Verdict{inbox.VerdictDone, inbox.VerdictRetry, inbox.VerdictDone} {
		if r := f.Forward(t.Context(), handlerAt(url), "shop", c, m); r.Verdict != want {
			t.Errorf("attempt %d = %s, want verdict %d", i+1, show(r), want)
		}
	}
	if n := requests.Load(); n != 3 {
		t.Errorf("%d requests for 3 attempts", n)
	}
}

// TestForwardKeepAlive: connections are used again after a success and after a failure whose answer is long.
func TestForwardKeepAlive(t *testing.T) {
	t.Parallel()
	for _, status := range []int{200, 500} {
		for _, size := range []int{0, 10, keptAnswer, 60 << 10} {
			url, accepted := serveRaw(t, func(conn net.Conn, _ *http.Request) {
				_, _ = fmt.Fprintf(conn, "HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s", status, size, strings.Repeat("x", size))
			})
			f := newForwarder(t, ForwarderConfig{})
			c, m := testMessage("{}")
			for range 5 {
				r := f.Forward(t.Context(), handlerAt(url), "shop", c, m)
				if r.ResponseStatus != status || status == 500 && len(r.ResponseBody) != min(size, keptAnswer) {
					t.Errorf("result = %s", show(r))
				}
			}
			f.Close()
			if n := accepted.Load(); n != 1 {
				t.Errorf("%d with %d bytes: %d connections, want 1", status, size, n)
			}
		}
	}
}

func TestForwardNoConnection(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := ln.Addr().String()
	_ = ln.Close()
	loopback, err := egress.ParseRules([]string{"127.0.0.0/8"})
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("日", 500) + "\x00\xff"
	for _, tc := range []struct {
		name, url string
		dial      func(context.Context, string, string) (net.Conn, error)
		class     inbox.Class
		text      string
	}{
		{"nobody listens", "http://" + closed + "/?QUERY", nil, inbox.ClassConnection, "dial " + closed + ": connection refused"},
		{"metadata", "http://169.254.169.254/latest?QUERY", nil, inbox.ClassRefused, "the egress rules don't allow 169.254.169.254: metadata services, link-local, multicast and reserved addresses are never allowed"},
		{"metadata as IPv6", "http://[::ffff:a9fe:a9fe]/?QUERY", nil, inbox.ClassRefused, "the egress rules don't allow 169.254.169.254: metadata services, link-local, multicast and reserved addresses are never allowed"},
		{"denied by the operator", "http://" + closed + "/?QUERY", egress.New(egress.Policy{
			Deny: loopback,
		}).DialContext, inbox.ClassRefused, "the egress rules don't allow 127.0.0.1: it is on the deny list"},
		{"unknown name", "http://nowhere.test/?QUERY", func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: "nowhere.test"}}
		}, inbox.ClassConnection, "lookup nowhere.test: no such host"},
		{"an unknown error", "http://a.test/?QUERY", func(context.Context, string, string) (net.Conn, error) {
			return nil, errors.New("QUERY")
		}, inbox.ClassConnection, "no connection"},
		{"a long error", "http://a.test/", func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Err: errors.New(long)}
		}, inbox.ClassConnection, "dial: " + strings.Repeat("日", 339)},
		{"no URL", "QUERY", nil, inbox.ClassRequest, "the handler's URL is not http or https with a host"},
		{"another scheme", "ftp://QUERY/", nil, inbox.ClassRequest, "the handler's URL is not http or https with a host"},
		{"no host", "http://:80/QUERY", nil, inbox.ClassRequest, "the handler's URL is not http or https with a host"},
		{"control character", "http://a/\nQUERY", nil, inbox.ClassRequest, "the handler's URL is not http or https with a host"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f := newForwarder(t, ForwarderConfig{Dial: tc.dial})
			c, m := testMessage("{}")
			r := f.Forward(t.Context(), handlerAt(tc.url), "shop", c, m)
			if r.Verdict != inbox.VerdictRetry || r.Delay != 8 || r.Class != tc.class || r.Error != tc.text {
				t.Errorf("result = %s, want class %q, error %q", show(r), tc.class, tc.text)
			}
			if len(r.Error) > 1024 || !utf8.ValidString(r.Error) || strings.Contains(r.Error, "QUERY") || strings.Contains(r.Error, "\x00") {
				t.Errorf("error = %q", r.Error)
			}
		})
	}
}

func TestForwardSecretsUnusable(t *testing.T) {
	t.Parallel()
	url, requests := record(t)
	f := newForwarder(t, ForwarderConfig{})
	c, m := testMessage("{}")
	for _, secrets := range [][]inbox.Secret{nil, {""}, {secretOf("good"), "s3cret"}, {"whsec_s3cret!"}} {
		h := handlerAt(url)
		h.Secrets = secrets
		r := f.Forward(t.Context(), h, "shop", c, m)
		if r.Verdict != inbox.VerdictRetry || r.Class != inbox.ClassRequest || strings.Contains(r.Error, "s3cret") {
			t.Errorf("result = %s, want class request", show(r))
		}
	}
	if len(requests) != 0 {
		t.Error("a message was sent without a good signature")
	}
}

func TestForwardUserinfo(t *testing.T) {
	t.Parallel()
	url, requests := record(t)
	c, m := testMessage("{}")
	m.Headers = []byte("Authorization: Bearer provider\r\n")
	h := handlerAt(strings.Replace(url, "http://", "http://me:pass%21@", 1) + "/x#fragment")
	newForwarder(t, ForwarderConfig{}).Forward(t.Context(), h, "shop", c, m)
	got := <-requests
	if user, password, _ := (&http.Request{Header: got.header}).BasicAuth(); user != "me" || password != "pass!" || got.path != "POST /x" {
		t.Errorf("%s with user %q, password %q", got.path, user, password)
	}
}

func TestForwardTLS(t *testing.T) {
	t.Parallel()
	var proto atomic.Value
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		proto.Store(r.Proto)
		body, _ := io.ReadAll(r.Body)
		w.WriteHeader(len(body) + 498)
	}))
	srv.EnableHTTP2 = true
	srv.Config.ErrorLog = discardLog
	srv.StartTLS()
	defer srv.Close()
	c, m := testMessage("{}")

	roots := x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	if r := newForwarder(t, ForwarderConfig{RootCAs: roots}).Forward(t.Context(), handlerAt(srv.URL), "shop", c, m); r.ResponseStatus != 500 || proto.Load() != "HTTP/2.0" {
		t.Errorf("known CA: result = %s over %v, want 500 over HTTP/2.0", show(r), proto.Load())
	}

	old := httptest.NewUnstartedServer(http.NotFoundHandler())
	old.TLS = &tls.Config{MaxVersion: tls.VersionTLS11}
	old.Config.ErrorLog = discardLog
	old.StartTLS()
	defer old.Close()
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	hangUp, _ := net.Listen("tcp4", "127.0.0.1:0")
	defer hangUp.Close()
	go func() {
		if conn, err := hangUp.Accept(); err == nil {
			_, _ = conn.Read(make([]byte, 1))
			_ = conn.Close()
		}
	}()
	for _, tc := range []struct {
		name, url string
		roots     *x509.CertPool
		class     inbox.Class
		text      string
	}{
		{"unknown CA", srv.URL, nil, inbox.ClassTLS, "unknown authority"},
		{"another name", strings.Replace(srv.URL, "127.0.0.1", "localhost", 1), roots, inbox.ClassTLS, "not localhost"},
		{"old version", old.URL, roots, inbox.ClassTLS, "version"},
		{"no TLS", strings.Replace(plain.URL, "http://", "https://", 1), roots, inbox.ClassTLS, "does not look like a TLS handshake"},
		{"hangs up", "https://" + hangUp.Addr().String(), roots, inbox.ClassConnection, "during the TLS handshake"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newForwarder(t, ForwarderConfig{RootCAs: tc.roots}).Forward(t.Context(), handlerAt(tc.url), "shop", c, m)
			if r.Verdict != inbox.VerdictRetry || r.Class != tc.class || !strings.Contains(r.Error, tc.text) {
				t.Errorf("result = %s, want class %q, error with %q", show(r), tc.class, tc.text)
			}
		})
	}
}

var discardLog = log.New(io.Discard, "", 0)

// inMemory returns a Forwarder for a test with a fake clock: its connections are pipes, and each request that
// comes in by one is given to answer.
func inMemory(t *testing.T, answer func(net.Conn, *http.Request)) *Forwarder {
	t.Helper()
	var serving sync.WaitGroup
	t.Cleanup(serving.Wait)
	return newForwarder(t, ForwarderConfig{Dial: func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		serving.Go(func() {
			defer server.Close()
			br := bufio.NewReader(server)
			for {
				req, err := http.ReadRequest(br)
				if err != nil {
					return
				}
				if _, err := io.Copy(io.Discard, req.Body); err != nil {
					return
				}
				answer(server, req)
			}
		})
		return client, nil
	}})
}

func TestForwardTime(t *testing.T) {
	t.Parallel()
	const header = "HTTP/1.1 %d X\r\nContent-Length: 1000000\r\n\r\n"
	hang := func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) } // until the other end gives up
	for _, tc := range []struct {
		name     string
		answer   func(net.Conn, *http.Request)
		verdict  inbox.Verdict
		class    inbox.Class
		status   int
		body     string
		duration time.Duration
		delay    time.Duration
	}{
		{
			"never", func(conn net.Conn, _ *http.Request) { hang(conn) },
			inbox.VerdictRetry, inbox.ClassTimeout, 0, "", 30 * time.Second, 8,
		},
		{"slow, in time", func(conn net.Conn, _ *http.Request) {
			time.Sleep(29 * time.Second)
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		}, inbox.VerdictDone, "", 200, "", 29 * time.Second, 0},
		{"headers byte by byte", func(conn net.Conn, _ *http.Request) {
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nX-A: ")
			for {
				if _, err := conn.Write([]byte("x")); err != nil {
					return
				}
				time.Sleep(time.Second)
			}
		}, inbox.VerdictRetry, inbox.ClassTimeout, 0, "", 30 * time.Second, 8},
		{"success, endless body", func(conn net.Conn, _ *http.Request) {
			_, _ = fmt.Fprintf(conn, header, 200)
			for {
				if _, err := conn.Write(make([]byte, 1000)); err != nil {
					return
				}
			}
		}, inbox.VerdictDone, "", 200, "", 0, 0},
		{"success, stalled body", func(conn net.Conn, _ *http.Request) {
			_, _ = fmt.Fprintf(conn, header, 200)
			hang(conn)
		}, inbox.VerdictDone, "", 200, "", time.Second, 0},
		{"failure, endless body", func(conn net.Conn, _ *http.Request) {
			_, _ = fmt.Fprintf(conn, header, 500)
			for {
				if _, err := conn.Write(bytes.Repeat([]byte("y"), 1000)); err != nil {
					return
				}
			}
		}, inbox.VerdictRetry, inbox.ClassStatus, 500, strings.Repeat("y", 1024), 0, 8},
		{"failure, stalled body", func(conn net.Conn, _ *http.Request) {
			_, _ = fmt.Fprintf(conn, header+"part", 500)
			hang(conn)
		}, inbox.VerdictRetry, inbox.ClassStatus, 500, "part", time.Second, 8},
		{"permanent failure, stalled body", func(conn net.Conn, _ *http.Request) {
			_, _ = fmt.Fprintf(conn, header, 410)
			hang(conn)
		}, inbox.VerdictPermanent, inbox.ClassStatus, 410, "", time.Second, 0},
		{"late and stalled", func(conn net.Conn, _ *http.Request) {
			time.Sleep(29500 * time.Millisecond)
			_, _ = fmt.Fprintf(conn, header, 500)
			hang(conn)
		}, inbox.VerdictRetry, inbox.ClassStatus, 500, "", 30 * time.Second, 8},
		{"Retry-After, a date", func(conn net.Conn, _ *http.Request) {
			_, _ = fmt.Fprintf(conn, "HTTP/1.1 503 X\r\nContent-Length: 0\r\nRetry-After: %s\r\n\r\n",
				time.Now().Add(90*time.Second).UTC().Format(http.TimeFormat))
		}, inbox.VerdictRetry, inbox.ClassStatus, 503, "", 0, 90 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := inMemory(t, tc.answer)
				c, m := testMessage("{}")
				r := f.Forward(t.Context(), handlerAt("http://handler.test/"), "shop", c, m)
				if r.Verdict != tc.verdict || r.Class != tc.class || r.ResponseStatus != tc.status || string(r.ResponseBody) != tc.body {
					t.Errorf("result = %s, want verdict %d, class %q, status %d, body %q", show(r), tc.verdict, tc.class, tc.status, tc.body)
				}
				if r.Duration != tc.duration || r.Delay != tc.delay {
					t.Errorf("took %v, delay %v, want %v, %v", r.Duration, r.Delay, tc.duration, tc.delay)
				}
			})
		})
	}
}

// hangingDial never connects.
func hangingDial(ctx context.Context, _, _ string) (net.Conn, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestForwardConnectTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, m := testMessage("{}")
		r := newForwarder(t, ForwarderConfig{Dial: hangingDial}).Forward(t.Context(), handlerAt("http://handler.test"), "shop", c, m)
		if r.Verdict != inbox.VerdictRetry || r.Class != inbox.ClassTimeout || r.Error != "no connection within 30s" || r.Duration != 30*time.Second {
			t.Errorf("result = %s", show(r))
		}
	})
}

func TestForwardStopped(t *testing.T) {
	t.Parallel()
	requests := 0
	for _, tc := range []struct {
		name     string
		forward  func(t *testing.T) *Forwarder
		stop     time.Duration // after the start
		verdict  inbox.Verdict
		class    inbox.Class
		requests int
	}{
		{"before", func(t *testing.T) *Forwarder {
			return inMemory(t, func(net.Conn, *http.Request) { requests++ })
		}, 0, inbox.VerdictRelease, "", 0},
		{"while connecting", func(t *testing.T) *Forwarder {
			return newForwarder(t, ForwarderConfig{Dial: hangingDial})
		}, time.Second, inbox.VerdictRelease, "", 0},
		{"while waiting for the answer", func(t *testing.T) *Forwarder {
			return inMemory(t, func(conn net.Conn, _ *http.Request) {
				requests++
				_, _ = io.Copy(io.Discard, conn)
			})
		}, time.Second, inbox.VerdictRetry, inbox.ClassConnection, 1},
		{"within the body of a success", func(t *testing.T) *Forwarder {
			return inMemory(t, func(conn net.Conn, _ *http.Request) {
				requests++
				_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n")
				_, _ = io.Copy(io.Discard, conn)
			})
		}, time.Second / 2, inbox.VerdictDone, "", 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				requests = 0
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if tc.stop == 0 {
					cancel()
				}
				time.AfterFunc(tc.stop, cancel)
				c, m := testMessage("{}")
				r := tc.forward(t).Forward(ctx, handlerAt("http://handler.test"), "shop", c, m)
				synctest.Wait()
				if r.Verdict != tc.verdict || r.Class != tc.class || r.Duration != tc.stop || requests != tc.requests {
					t.Errorf("result = %s after %d requests, want verdict %d, class %q, %d requests", show(r), requests, tc.verdict, tc.class, tc.requests)
				}
				if tc.verdict == inbox.VerdictRelease && (r.Delay != 0 || r.Error != "") {
					t.Errorf("result = %s, want a bare release", show(r))
				}
			})
		})
	}
}

// TestForwardStoppedHTTP2: over HTTP/2 too, a message that the handler may have got is not released.
func TestForwardStoppedHTTP2(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	}))
	srv.EnableHTTP2 = true
	srv.StartTLS()
	defer srv.Close()
	roots := x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	c, m := testMessage("{}")
	r := newForwarder(t, ForwarderConfig{RootCAs: roots}).Forward(ctx, handlerAt(srv.URL), "shop", c, m)
	if r.Verdict != inbox.VerdictRetry || r.Class != inbox.ClassConnection {
		t.Errorf("result = %s, want verdict %d, class connection", show(r), inbox.VerdictRetry)
	}
}

// TestForwardMany: no handler's version is mixed up with another's, and what is kept of them is bounded.
func TestForwardMany(t *testing.T) {
	t.Parallel()
	url, requests := record(t)
	f := newForwarder(t, ForwarderConfig{})
	c, m := testMessage("{}")
	for id := range int64(maxPrepared + 10) {
		h := handlerAt(url)
		h.ID = id
		if _, err := f.prepare(h); err != nil {
			t.Fatal(err)
		}
	}
	if len(f.prepared) > maxPrepared {
		t.Errorf("%d handlers are kept, want at most %d", len(f.prepared), maxPrepared)
	}
	h := handlerAt(url + "/old")
	for _, path := range []string{"/old", "/new"} {
		h.URL = url + path
		f.Forward(t.Context(), h, "shop", c, m)
		if got := <-requests; got.path != "POST "+path {
			t.Errorf("sent to %s, want %s", got.path, path)
		}
	}
}

// FuzzHeader: whatever a provider's headers are, the request can be sent and inboxd's own headers stand.
func FuzzHeader(f *testing.F) {
	f.Add([]byte("Webhook-Id: x\r\nInbox-Fence: 1\r\n"), "evt", "1001")
	f.Add([]byte("Connection: webhook-id, inbox-fence, traceparent\r\n"), "evt", "")
	f.Add([]byte("inbox_fence: 1\nA: \x00\r\n: b\r\n\r\nhost:x"), "\r\n", "\x7f")
	f.Add([]byte("Traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n"), "", "")
	p := newPrepared(handlerAt("http://handler.test"))
	f.Fuzz(func(t *testing.T, lines []byte, messageID, bizKey string) {
		c, m := testMessage("{}")
		m.Headers, m.MessageID, m.BizKey = lines, messageID, bizKey
		header := p.header("inboxd/test", "shop", c, m, time.Unix(1_700_000_000, 0))
		for name, want := range map[string]string{
			headerWebhookID: "msg_7", headerWebhookTimestamp: "1700000000", headerFence: "41", headerAttempt: "3",
			headerReplay: "1", headerSource: "shop", "User-Agent": "inboxd/test", "Content-Type": "application/json",
		} {
			if values := header[name]; !slices.Equal(values, []string{want}) {
				t.Errorf("%s = %q, want %q", name, values, want)
			}
		}
		if err := verify(t, secretOf("the handler's key"), header, m.Body); err != nil {
			t.Error(err)
		}
		// What http.Transport makes of it, without a connection.
		req := p.request.WithContext(t.Context())
		req.Header = header
		_, err := (&http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
			return nil, io.ErrNoProgress
		}}).RoundTrip(req) //nolint:bodyclose // there is no answer
		if !errors.Is(err, io.ErrNoProgress) {
			t.Errorf("the transport refuses it: %v", err)
		}
		for _, name := range []string{"Authorization", "Cookie", "Connection", "Transfer-Encoding", "Host", "Content-Length"} {
			if _, ok := header[name]; ok {
				t.Errorf("%s was passed on", name)
			}
		}
	})
}

// sink answers 200 to everything, with as little work as can be.
func sink(b *testing.B) string {
	b.Helper()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go serveSink(conn)
		}
	}()
	return "http://" + ln.Addr().String()
}

func serveSink(conn net.Conn) {
	defer conn.Close()
	buf, n := make([]byte, 64<<10), 0
	length := []byte("\r\nContent-Length: ")
	for {
		end := bytes.Index(buf[:n], []byte("\r\n\r\n"))
		if end >= 0 {
			at := bytes.Index(buf[:end], length) + len(length)
			size := 0
			for ; buf[at] >= '0' && buf[at] <= '9'; at++ {
				size = size*10 + int(buf[at]-'0')
			}
			if total := end + 4 + size; n >= total {
				n = copy(buf, buf[total:n])
				if _, err := conn.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")); err != nil {
					return
				}
				continue
			}
		}
		more, err := conn.Read(buf[n:])
		if err != nil {
			return
		}
		n += more
	}
}

// BenchmarkForward sends 1.5 KB with a provider's usual headers, from 64 goroutines, to a sink in this process.
func BenchmarkForward(b *testing.B) {
	h := handlerAt(sink(b) + "/hook")
	c, m := testMessage(strings.Repeat("x", 1500))
	m.Headers = []byte("User-Agent: Shopify-Captain-Hook\r\nX-Shopify-Topic: orders/create\r\nX-Shopify-Shop-Domain: a.myshopify.com\r\n" +
		"X-Shopify-Hmac-Sha256: XWmrwMey6OsLMeiZKwP4FppHH3cmAiiJJAweH5Jo4bM=\r\nX-Shopify-Webhook-Id: b54557e4-bdd9-4b37-8a5f-bf7d70bcd043\r\n" +
		"Accept: */*\r\n")
	f := NewForwarder(ForwarderConfig{Version: "bench"})
	b.Cleanup(f.Close)
	b.ReportAllocs()
	b.SetParallelism(64 / runtime.GOMAXPROCS(0))
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if r := f.Forward(b.Context(), h, "shop", c, m); r.Verdict != inbox.VerdictDone {
				b.Errorf("result = %s", show(r))
				return
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "deliveries/s")
}

// BenchmarkHeader is what one attempt costs before it is sent.
func BenchmarkHeader(b *testing.B) {
	p := newPrepared(handlerAt("http://handler.test"))
	c, m := testMessage(strings.Repeat("x", 1500))
	m.Headers = []byte("User-Agent: Shopify-Captain-Hook\r\nX-Shopify-Topic: orders/create\r\nAccept: */*\r\n")
	b.ReportAllocs()
	for b.Loop() {
		p.header("inboxd/bench", "shop", c, m, time.Unix(1_700_000_000, 0))
	}
}
