package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/inboxd/inboxd/client"
	"github.com/inboxd/inboxd/internal/contract"
)

// operatorsWorld is a running inboxd, and everything that the operators' API is asked in it is held to openapi.yaml.
type operatorsWorld struct {
	*world
	*instance
	contract *contract.Contract
	client   *http.Client
	byID     map[string]contract.Operation

	mu   sync.Mutex
	last contract.Exchange
	seen map[string][]int // the statuses that each operation has answered
}

func newOperatorsWorld(t *testing.T) *operatorsWorld {
	t.Helper()
	w := &operatorsWorld{world: newWorld(t), byID: make(map[string]contract.Operation), seen: make(map[string][]int)}
	w.instance = w.start(t)
	response, err := http.Get(w.admin + "/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	document, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if w.contract, err = contract.Parse(document); err != nil {
		t.Fatal(err)
	}
	for _, o := range w.contract.Operations() {
		w.byID[o.ID] = o
	}
	w.client = &http.Client{Transport: w.contract.Transport(http.DefaultTransport, func(e contract.Exchange, err error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.last = e
		w.seen[e.Operation] = append(w.seen[e.Operation], e.Status)
		if err != nil {
			t.Error(err)
		}
	})}
	return w
}

// do calls an operation at a path below its server's and returns the status and the body.
func (w *operatorsWorld) do(t *testing.T, id, path string, change func(*http.Request), body string) (int, []byte) {
	t.Helper()
	o, ok := w.byID[id]
	if !ok {
		t.Fatalf("openapi.yaml has no operation %s", id)
	}
	request, err := http.NewRequestWithContext(t.Context(), o.Method, w.admin+"/api/v1"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+w.world.token)
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	if change != nil {
		change(request)
	}
	response, err := w.client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	all := io.Reader(response.Body)
	if response.Header.Get("Content-Type") == "text/event-stream" {
		all = io.LimitReader(all, 10) // of what doesn't end
	}
	text, err := io.ReadAll(all)
	if err != nil {
		t.Fatal(err)
	}
	if w.last.Operation != id {
		t.Fatalf("%s %s is the operation %q, want %s", o.Method, path, w.last.Operation, id)
	}
	return response.StatusCode, text
}

// must calls an operation that has to answer with the status.
func (w *operatorsWorld) must(t *testing.T, status int, id, path, body string) []byte {
	t.Helper()
	got, text := w.do(t, id, path, nil, body)
	if got != status {
		t.Fatalf("%s %s %s = %d %s, want %d", id, path, body, got, text, status)
	}
	return text
}

func read[T any](t *testing.T, text []byte) T {
	t.Helper()
	var v T
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatalf("read %s: %v", text, err)
	}
	return v
}

// TestContractOfEveryOperation drives each operation of openapi.yaml with what it is for and with what it must refuse. What the
// server accepts and what it answers must be as the document says.
func TestContractOfEveryOperation(t *testing.T) {
	t.Parallel()
	w := newOperatorsWorld(t)
	nobody := "x" // a name that nothing has
	long := fmt.Sprintf(`{"reason": %q}`, strings.Repeat("x", 501))
	why := `{"reason": "a test", "note": "of the contract"}`

	// Sources and handlers.
	shop := `{"name": "shop", "provider": "hmac", "secrets": ["` + shopSecret + `"], "settings": {"signature": {"in": "header:X-Signature"},
		"message_id": ["{header:X-Id}"], "message_type": ["{header:X-Type}"]}}`
	w.must(t, 201, "CreateSource", "/sources", shop)
	w.must(t, 409, "CreateSource", "/sources", shop)
	w.must(t, 422, "CreateSource", "/sources", `{"name": "other", "provider": "nobody"}`)
	w.must(t, 201, "CreateSource", "/sources", `{"name": "other", "provider": "none", "enabled": false, "body_limit": 1000}`)
	w.must(t, 200, "ListSources", "/sources", "")
	w.must(t, 200, "GetSource", "/sources/shop", "")
	w.must(t, 404, "GetSource", "/sources/"+nobody, "")
	w.must(t, 200, "ChangeSource", "/sources/other", `{"enabled": true, "body_limit": 0, "settings": {}, "secrets": []}`)
	w.must(t, 404, "ChangeSource", "/sources/"+nobody, `{"enabled": true}`)
	w.must(t, 422, "ChangeSource", "/sources/shop", `{"secrets": []}`)

	taker := newDownstream(t, nil)
	refuser := newDownstream(t, func(rw http.ResponseWriter, _ *http.Request, _ []byte) {
		rw.WriteHeader(http.StatusTeapot)
		_, _ = rw.Write([]byte("no coffee here"))
	})
	books := `{"name": "books", "url": "` + taker.URL + `", "sources": ["*"], "message_types": ["paid", ""]}`
	w.must(t, 201, "CreateHandler", "/handlers", books)
	w.must(t, 409, "CreateHandler", "/handlers", books)
	w.must(t, 422, "CreateHandler", "/handlers", `{"name": "bad", "url": "http://169.254.169.254/", "sources": ["shop"]}`)
	w.must(t, 201, "CreateHandler", "/handlers", `{"name": "pot", "url": "`+refuser.URL+`", "sources": ["shop"], "permanent_statuses": [418],
		"concurrency": 3, "timeout": "5s", "max_retry_count": 0, "backoff_base": "1s", "backoff_cap": "2s", "paused": false}`)
	w.must(t, 201, "CreateHandler", "/handlers", `{"name": "keyed", "url": "https://127.0.0.1:9", "sources": ["other"], "credentials": {"headers": [{"name": "X-Key", "value": "k"}],
		"oauth2": {"token_url": "https://127.0.0.1:9/token", "client_id": "me", "client_secret": "s", "scopes": ["a"], "params": {"audience": "b"}}}}`)
	w.must(t, 200, "ChangeHandler", "/handlers/keyed", `{"credentials": {"basic": {"username": "me", "password": ""}}}`)
	w.must(t, 200, "ListHandlers", "/handlers", "")
	w.must(t, 200, "GetHandler", "/handlers/books", "")
	w.must(t, 404, "GetHandler", "/handlers/"+nobody, "")
	w.must(t, 200, "ChangeHandler", "/handlers/books", `{"concurrency": 4, "timeout": "10s", "sources": ["shop"], "message_types": ["*"]}`)
	w.must(t, 404, "ChangeHandler", "/handlers/"+nobody, `{"paused": true}`)
	w.must(t, 422, "ChangeHandler", "/handlers/books", `{"sources": ["nobody"]}`)
	for _, id := range []string{"PauseHandler", "ResumeHandler"} {
		path := strings.TrimPrefix(w.byID[id].Path, "/api/v1")
		w.must(t, 200, id, strings.Replace(path, "{name}", "books", 1), why)
		w.must(t, 200, id, strings.Replace(path, "{name}", "books", 1), "")
		w.must(t, 404, id, strings.Replace(path, "{name}", nobody, 1), why)
		w.must(t, 422, id, strings.Replace(path, "{name}", "books", 1), long)
	}
	w.must(t, 200, "PingHandler", "/handlers/books/ping", "")
	w.must(t, 200, "PingHandler", "/handlers/pot/ping", "")
	w.must(t, 404, "PingHandler", "/handlers/"+nobody+"/ping", "")

	// What isn't said is as the document says.
	w.must(t, 200, "GetStats", "/stats", "")
	plain := w.must(t, 201, "CreateHandler", "/handlers", `{"name": "plain", "url": "http://127.0.0.1:9", "sources": ["other"]}`)
	made := read[struct{ Handler map[string]any }](t, plain).Handler
	for name, want := range w.contract.Defaults("NewHandler") {
		if fmt.Sprint(made[name]) != fmt.Sprint(want) {
			t.Errorf("a new handler's %s is %v, and openapi.yaml says %v", name, made[name], want)
		}
	}
	made = read[map[string]any](t, w.must(t, 201, "CreateSource", "/sources", `{"name": "plain", "provider": "none"}`))
	for name, want := range w.contract.Defaults("NewSource") {
		if fmt.Sprint(made[name]) != fmt.Sprint(want) {
			t.Errorf("a new source's %s is %v, and openapi.yaml says %v", name, made[name], want)
		}
	}
	if untold := w.contract.Untold(); len(untold) > 0 {
		t.Errorf("openapi.yaml doesn't say what is checked:\n%s", strings.Join(untold, "\n"))
	}

	// Their secrets.
	for _, owner := range []struct{ path, list, rotate, retire, body string }{
		{"/sources/shop", "ListSourceSecrets", "RotateSourceSecret", "RetireSourceSecret", `{"secret": "` + shopSecret + `", "overlap": "1h"}`},
		{"/handlers/books", "ListHandlerSecrets", "RotateHandlerSecret", "RetireHandlerSecret", `{"overlap": "1h"}`},
	} {
		unknown := path.Dir(owner.path) + "/" + nobody + "/secrets"
		if owner.list == "ListSourceSecrets" {
			w.must(t, 201, "AddSourceSecret", owner.path+"/secrets", `{"secret": "another one"}`)
			w.must(t, 404, "AddSourceSecret", unknown, `{"secret": "another one"}`)
		}
		w.must(t, 200, owner.rotate, owner.path+"/secrets/rotate", owner.body)
		w.must(t, 404, owner.rotate, unknown+"/rotate", owner.body)
		secrets := read[client.SecretList](t, w.must(t, 200, owner.list, owner.path+"/secrets", "")).Items
		w.must(t, 404, owner.list, unknown, "")
		if len(secrets) != 2 {
			t.Fatalf("%s has the secrets %+v, want a new one and one that ends", owner.path, secrets)
		}
		w.must(t, 204, owner.retire, owner.path+"/secrets/"+secrets[1].ID, "")
		w.must(t, 409, owner.retire, owner.path+"/secrets/"+secrets[0].ID, "")
		w.must(t, 404, owner.retire, owner.path+"/secrets/"+nobody, "")
	}

	// Each message is DONE at one handler and parked at the other.
	const count = 6
	var numbers []string
	for n := range count {
		status, header, err := postShop(t.Context(), http.DefaultClient, w.public, fmt.Sprintf("m%d", n), []byte(`{"n": 1}`))
		if err != nil || status != http.StatusOK {
			t.Fatalf("%d, %v", status, err)
		}
		numbers = append(numbers, header.Get("Inbox-Message"))
	}
	var parked []client.Delivery
	eventually(t, 30*time.Second, "the messages have gone as far as they do", func() bool {
		done := read[client.DeliveryList](t, w.must(t, 200, "ListDeliveries", "/deliveries?status=DONE&handler=books", ""))
		parked = read[client.DeliveryList](t, w.must(t, 200, "ListDeliveries", "/deliveries?status=MANUAL_REQUIRED&handler=pot", "")).Items
		return len(done.Items) == count && len(parked) == count
	})
	of := func(d client.Delivery) string {
		return fmt.Sprintf(`{"claim_seq": %d, "reason": "a test"}`, d.ClaimSeq)
	}

	// Lists, with every filter and with a second page.
	times := "from=2026-01-01T00:00:00Z&to=2100-01-01T00:00:00Z"
	for _, list := range []struct{ id, path, filters string }{
		{"ListMessages", "/messages", "source=shop&handler=pot&message_type=paid&status=MANUAL_REQUIRED&" + times},
		{"ListMessages", "/messages", ""},
		{"ListDeliveries", "/deliveries", "source=shop&message_type=paid&error_class=status&response_status=418&" + times},
		{"ListDeliveries", "/deliveries", ""},
		{"ListAttempts", "/attempts", "source=shop&handler=pot&error_class=status&response_status=418&" + times},
		{"ListAttempts", "/attempts", ""},
		{"ListOutcomes", "/outcomes", "source=shop&handler=books&result=DONE&response_status=200&" + times},
		{"ListOutcomes", "/outcomes", ""},
		{"ListAudit", "/audit", "actor=test&action=source.create&" + times},
		{"ListAudit", "/audit", ""},
	} {
		page := read[struct {
			Items []any
			Next  *string
		}](t, w.must(t, 200, list.id, list.path+"?limit=1&"+list.filters, ""))
		if len(page.Items) != 1 || page.Next == nil {
			t.Fatalf("%s?%s has %d items and no next page, want one and one", list.path, list.filters, len(page.Items))
		}
		w.must(t, 200, list.id, list.path+"?limit=500&"+list.filters+"&cursor="+*page.Next, "")
		for _, other := range []struct{ id, path string }{
			{"ListMessages", "/messages?"},
			{"ListDeliveries", "/deliveries?"},
			{"ListAttempts", "/attempts?"},
			{"ListOutcomes", "/outcomes?"},
			{"ListAudit", "/audit?"},
			{"LookUp", "/lookup?key=m0&"},
		} {
			if other.id != list.id {
				w.must(t, 400, other.id, other.path+"cursor="+*page.Next, "")
			}
		}
	}
	w.must(t, 200, "ListMessages", "/messages?biz_key=b&ordering_key=o&message_id=m0", "")
	w.must(t, 200, "ListAttempts", "/attempts?message="+numbers[0], "")
	w.must(t, 200, "ListAudit", "/audit?object=shop", "")
	if found := read[client.FoundList](t, w.must(t, 200, "LookUp", "/lookup?key=m0&limit=1", "")); len(found.Items) != 1 {
		t.Errorf("the look-up found %+v", found)
	}
	w.must(t, 200, "GetStats", "/stats?minutes=60", "")
	w.must(t, 200, "GetSystem", "/system", "")
	w.must(t, 200, "Tail", "/tail?since=2026-01-01T00:00:00Z&source=shop&handler=books&message_type=paid&status=DONE", "")

	// One message, one delivery.
	w.must(t, 200, "GetMessage", "/messages/"+numbers[0], "")
	w.must(t, 404, "GetMessage", "/messages/999999", "")
	w.must(t, 200, "GetTimeline", "/messages/"+numbers[0]+"/timeline", "")
	w.must(t, 404, "GetTimeline", "/messages/999999/timeline", "")
	w.must(t, 200, "ReplayMessage", "/messages/"+numbers[0]+"/replay", `{"handlers": ["books"], "reason": "a test", "note": "of the contract"}`)
	w.must(t, 409, "ReplayMessage", "/messages/"+numbers[0]+"/replay", `{"handlers": ["pot"]}`)
	w.must(t, 422, "ReplayMessage", "/messages/"+numbers[0]+"/replay", `{"handlers": ["nobody"]}`)
	w.must(t, 404, "ReplayMessage", "/messages/999999/replay", "")
	w.must(t, 200, "GetDelivery", "/deliveries/"+parked[0].ID, "")
	w.must(t, 404, "GetDelivery", "/deliveries/999999.1", "")
	for n, id := range []string{"RetryDelivery", "DiscardDelivery", "FinishDelivery"} {
		path := strings.TrimPrefix(w.byID[id].Path, "/api/v1")
		at := strings.Replace(path, "{id}", parked[n].ID, 1)
		w.must(t, 409, id, at, `{"claim_seq": 1000000}`)
		w.must(t, 422, id, at, `{}`)
		w.must(t, 200, id, at, of(parked[n]))
		w.must(t, 404, id, strings.Replace(path, "{id}", "999999.1", 1), `{"claim_seq": 1}`)
	}
	w.must(t, 200, "GetTimeline", "/messages/"+parked[1].Message+"/timeline", "")
	w.must(t, 200, "ListAudit", "/audit?message="+parked[1].Message, "")

	// Jobs.
	w.must(t, 200, "CreateJob", "/jobs", `{"action": "retry", "filter": {"handler": "pot"}, "dry_run": true}`)
	w.must(t, 422, "CreateJob", "/jobs", `{"action": "retry", "filter": {}}`)
	var job client.Job
	eventually(t, 30*time.Second, "a job is cancelled before it is done", func() bool {
		job = read[client.Job](t, w.must(t, 201, "CreateJob", "/jobs", `{"action": "replay", "pace": 1, "reason": "a test", "note": "of the contract",
			"to_handler": "books", "filter": {"status": "DONE", "source": "shop", "message_type": "paid", "from": "2026-01-01T00:00:00Z", "to": "2100-01-01T00:00:00Z"}}`))
		w.must(t, 200, "GetJob", "/jobs/"+job.ID, "")
		status, _ := w.do(t, "CancelJob", "/jobs/"+job.ID+"/cancel", nil, why)
		return status == http.StatusOK
	})
	w.must(t, 409, "CancelJob", "/jobs/"+job.ID+"/cancel", "")
	w.must(t, 404, "GetJob", "/jobs/999999", "")
	w.must(t, 404, "CancelJob", "/jobs/999999/cancel", "")
	w.must(t, 201, "CreateJob", "/jobs", `{"action": "discard", "filter": {"all": true}}`)
	jobs := read[client.JobList](t, w.must(t, 200, "ListJobs", "/jobs?limit=1", ""))
	if len(jobs.Items) != 1 || jobs.Next == nil {
		t.Fatalf("the jobs are %+v, want one and a next page", jobs)
	}
	w.must(t, 200, "ListJobs", "/jobs?cursor="+*jobs.Next, "")
	w.must(t, 400, "ListJobs", "/jobs?status=running&cursor="+*jobs.Next, "")

	w.must(t, 201, "CreateToken", "/tokens", `{"name": "ann", "role": "read", "expires_at": "2100-01-01T00:00:00Z", "sources": ["s*"], "handlers": ["*"]}`)
	w.must(t, 409, "CreateToken", "/tokens", `{"name": "ann", "role": "admin"}`)
	w.must(t, 200, "ListTokens", "/tokens", "")
	w.must(t, 204, "RevokeToken", "/tokens/ann", "")
	w.must(t, 200, "ListTokens", "/tokens", "")
	w.must(t, 404, "RevokeToken", "/tokens/"+nobody, "")

	w.refuseAll(t)
	w.must(t, 204, "DeleteHandler", "/handlers/pot", "")
	w.must(t, 404, "DeleteHandler", "/handlers/pot", "")
	w.must(t, 204, "DeleteSource", "/sources/other", "")
	w.must(t, 404, "DeleteSource", "/sources/other", "")

	for _, o := range w.contract.Operations() {
		want := []int{200, http.StatusUnauthorized}
		if strings.Contains(o.Path, "{") {
			want = append(want, http.StatusNotFound)
		}
		if o.Body || o.Query {
			want = append(want, http.StatusBadRequest, http.StatusUnprocessableEntity)
		}
		for _, status := range want {
			if !slices.ContainsFunc(w.seen[o.ID], func(got int) bool { return got == status || status == 200 && got/100 == 2 }) {
				t.Errorf("%s (%s %s): this test has no case that is answered %d", o.ID, o.Method, o.Path, status)
			}
		}
	}
}

// refuseAll asks each operation without a token, and with everything that its parameters and body don't allow.
func (w *operatorsWorld) refuseAll(t *testing.T) {
	t.Helper()
	for _, o := range w.contract.Operations() {
		path := strings.TrimPrefix(o.Path, "/api/v1")
		// A request that can't be right is refused before anything is looked for.
		at := strings.NewReplacer("{id}", "999999.1", "{name}", "x", "{secret}", "x").Replace(path)
		if status, text := w.do(t, o.ID, at, func(r *http.Request) { r.Header.Del("Authorization") }, ""); status != http.StatusUnauthorized {
			t.Errorf("%s without a token = %d %s", o.ID, status, text)
		}
		if strings.Contains(path, "{") && !o.Body {
			for _, odd := range []string{"%00", "%ff", "-1", "1e3", "0x1", "%27", "%2F", "%20", "ä", strings.Repeat("9", 5000)} {
				at := strings.NewReplacer("{id}", odd, "{name}", odd, "{secret}", odd).Replace(path)
				if status, text := w.do(t, o.ID, at, nil, ""); status != http.StatusNotFound {
					t.Errorf("%s %.80s = %d %s, want 404", o.ID, at, status, text)
				}
			}
		}
		for _, bad := range w.contract.BadRequests(o, 1<<20) {
			change := func(r *http.Request) {
				r.URL.RawQuery = bad.Query
				switch bad.ContentType {
				case "":
				case "-":
					r.Header.Del("Content-Type")
				default:
					r.Header.Set("Content-Type", bad.ContentType)
				}
			}
			status, text := w.do(t, o.ID, at, change, bad.Body)
			problem := read[client.Problem](t, text)
			named := bad.Field == "" || slices.ContainsFunc(problem.Errors, func(e client.FieldError) bool {
				return strings.HasPrefix(e.Field, bad.Field) && e.Detail != ""
			})
			if !slices.Contains(bad.Statuses, status) || !named {
				t.Errorf("%s, %s: %d %.300s, want one of %v that names %q", o.ID, bad.Name, status, text, bad.Statuses, bad.Field)
			}
			if bytes.Contains(text, []byte("json:")) || bytes.Contains(text, []byte("SQLSTATE")) {
				t.Errorf("%s, %s: the answer tells of the inside: %s", o.ID, bad.Name, text)
			}
		}
	}
}
