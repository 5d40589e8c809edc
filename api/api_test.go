package api_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/goccy/go-yaml"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"github.com/inboxd/inboxd"
	"github.com/inboxd/inboxd/api"
	"github.com/inboxd/inboxd/inbox"
	"github.com/inboxd/inboxd/internal/contract"
	"github.com/inboxd/inboxd/internal/egress"
	"github.com/inboxd/inboxd/internal/seal"
	"github.com/inboxd/inboxd/postgres"
	"github.com/inboxd/inboxd/postgres/pgtest"
	"github.com/inboxd/inboxd/providers"
)

// planted is part of every secret that a test registers; no answer and no log line may hold it.
const planted = "cGxhbnRlZCBzZWNyZXQ"

// gateway is the API over real HTTP and a database of its own.
var operator = inbox.Actor{Name: "test"}

type gateway struct {
	*postgres.DB
	pool    *pgxpool.Pool
	url     string
	handler http.Handler
	token   string
	changed int // calls of Changed
	ready   int // calls of Ready
}

type checker struct{ catalog *providers.Catalog }

func (checker) CheckHost(host string) error { return egress.New(egress.Policy{}).CheckHost(host) }

func (checker) Certificate(*inbox.Handler) *x509.Certificate { return nil }

func (c checker) SignatureHeader(s *inbox.Source) string { return c.catalog.SignatureHeader(s) }

// CheckHandler takes what begins like a signing secret.
func (checker) CheckHandler(h *inbox.Handler) error {
	for _, secret := range h.Secrets {
		if !strings.HasPrefix(secret.Reveal(), "whsec_") {
			return errors.New("a secret is no signing secret")
		}
	}
	return nil
}

func (c checker) CheckSource(s *inbox.Source) error {
	_, err := c.catalog.Configure(s)
	return err
}

// newKeys returns a ring with one random key.
func newKeys(t *testing.T) *seal.Keyring {
	t.Helper()
	entry, err := seal.NewKey("test")
	if err != nil {
		t.Fatal(err)
	}
	keys, err := seal.Parse(entry)
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func newGateway(t *testing.T) *gateway {
	t.Helper()
	database := pgtest.New(t).URL
	db, err := postgres.Open(t.Context(), database, 4, postgres.WithSecrets(postgres.Secrets{Keys: newKeys(t)}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	pool, err := pgxpool.New(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	catalog, err := providers.Embedded()
	if err != nil {
		t.Fatal(err)
	}
	g := &gateway{DB: db, pool: pool}
	if g.token, err = db.CreateToken(t.Context(), operator, &inbox.OperatorToken{Name: "test", Role: inbox.RoleAdmin, Scope: inbox.Everything()}); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	g.handler = api.New(api.Config{
		Store: db, Checker: checker{catalog}, Changed: func(context.Context) { g.changed++ }, Ready: func() { g.ready++ },
		Logger: zerolog.New(&log), Version: "v1.2.3", Tries: api.NewTries(1000, time.Hour),
	})
	server := httptest.NewServer(g.handler)
	t.Cleanup(func() {
		server.Close()
		if strings.Contains(log.String(), planted) || strings.Contains(log.String(), "whsec_") || strings.Contains(log.String(), g.token) {
			t.Errorf("the log holds a secret: %s", log.String())
		}
	})
	g.url = server.URL
	return g
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	text   string
}

// into decodes the answer's body.
func into[T any](t *testing.T, a answer) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(a.text), &v); err != nil {
		t.Fatalf("decode %q: %v", a.text, err)
	}
	return v
}

// send makes a request with the token and a JSON body, unless it is "".
func (g *gateway) send(t *testing.T, method, path, body string) answer {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, g.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+g.token)
	if body != "" {
		request.Header.Set("Content-Type", "application/json; charset=utf-8")
	}
	return do(t, request)
}

// openAPI is openapi.yaml, which all that the tests send and get is held to.
var openAPI = sync.OnceValue(func() *contract.Contract {
	c, err := contract.Parse(inboxd.OpenAPI)
	if err != nil {
		panic(err)
	}
	return c
})

// untilToldAll reads a stream, which doesn't end, until it has told everything of before: an id alone says so, the second.
func untilToldAll(stream io.Reader) io.Reader {
	var text strings.Builder
	lines := bufio.NewScanner(stream)
	event := false
	for ids := 0; ids < 2 && lines.Scan(); {
		fmt.Fprintln(&text, lines.Text())
		switch field, _, _ := strings.Cut(lines.Text(), ":"); {
		case field == "data":
			event = true
		case field == "id" && !event:
			ids++
		case field == "":
			event = false
		}
	}
	return strings.NewReader(text.String())
}

func do(t *testing.T, request *http.Request) answer {
	t.Helper()
	client := &http.Client{Transport: openAPI().Transport(http.DefaultTransport, func(_ contract.Exchange, err error) {
		if err != nil {
			t.Error(err)
		}
	})}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body := io.Reader(response.Body)
	if response.Header.Get("Content-Type") == "text/event-stream" {
		body = untilToldAll(body)
	}
	text, err := io.ReadAll(body)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(text, []byte(planted)) {
		t.Errorf("%s %s: the answer holds a secret: %s", request.Method, request.URL.Path, text)
	}
	return answer{response.StatusCode, response.Header, string(text)}
}

// must sends a request that has to succeed.
func (g *gateway) must(t *testing.T, status int, method, path, body string) answer {
	t.Helper()
	a := g.send(t, method, path, body)
	if a.status != status {
		t.Fatalf("%s %s %s = %d %s, want %d", method, path, body, a.status, a.text, status)
	}
	return a
}

// refused sends a request that has to fail, and checks the form of the problem.
func (g *gateway) refused(t *testing.T, kind api.ProblemType, method, path, body string) api.Problem {
	t.Helper()
	return problem(t, g.send(t, method, path, body), kind, method+" "+path+" "+body)
}

func problem(t *testing.T, a answer, kind api.ProblemType, what string) api.Problem {
	t.Helper()
	p := into[api.Problem](t, a)
	if p.Type != kind || p.Status != a.status || p.Title == "" || a.status < 400 || a.header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("%s = %d %s %s, want the problem %s", what, a.status, a.header.Get("Content-Type"), a.text, kind)
	}
	return p
}

// fields are the fields that a problem names, in order.
func fields(p api.Problem) string {
	var names []string
	for _, e := range p.Errors {
		names = append(names, e.Field)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

const (
	stripeSource = `{"name": "shop", "provider": "stripe", "secrets": ["whsec_` + planted + `"]}`
	hookHandler  = `{"name": "books", "url": "https://books.example/hook", "sources": ["shop"]}`
)

func TestSources(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	a := g.must(t, 201, "POST", "/api/v1/sources", stripeSource)
	source := into[api.Source](t, a)
	if source.Name != "shop" || source.SecretCount != 1 || !source.Enabled || string(source.Settings) != "{}" || source.CreatedAt.IsZero() {
		t.Errorf("created %+v", source)
	}
	if a.header.Get("Cache-Control") != "no-store" || a.header.Get("Inboxd-Version") != "v1.2.3" {
		t.Errorf("headers = %v", a.header)
	}
	g.must(t, 201, "POST", "/api/v1/sources", `{"name": "a-none", "provider": "none", "enabled": false, "body_limit": 5}`)

	list := into[api.SourceList](t, g.must(t, 200, "GET", "/api/v1/sources", ""))
	if len(list.Items) != 2 || list.Items[0].Name != "a-none" || list.Items[0].BodyLimit != 5 || list.Items[0].Enabled {
		t.Errorf("the list is %+v", list)
	}
	changed := into[api.Source](t, g.must(t, 200, "PATCH", "/api/v1/sources/shop",
		`{"enabled": false, "secrets": ["whsec_`+planted+`", "whsec_x`+planted+`"]}`))
	if changed.Enabled || changed.SecretCount != 2 || changed.Provider != "stripe" || changed.UpdatedAt.Before(changed.CreatedAt) {
		t.Errorf("changed to %+v", changed)
	}
	if got := into[api.Source](t, g.must(t, 200, "GET", "/api/v1/sources/shop", "")); got.SecretCount != 2 || got.Enabled {
		t.Errorf("read %+v", got)
	}
	g.refused(t, api.ProblemNameTaken, "POST", "/api/v1/sources", stripeSource)
	g.must(t, 204, "DELETE", "/api/v1/sources/shop", "")
	for _, method := range []string{"GET", "PATCH", "DELETE"} {
		body := ""
		if method == "PATCH" {
			body = `{"enabled": true}`
		}
		g.refused(t, api.ProblemNotFound, method, "/api/v1/sources/shop", body)
	}
	g.must(t, 201, "POST", "/api/v1/sources", stripeSource) // the name is free again
	if g.changed != 5 {
		t.Errorf("Changed was called %d times, want once for each of 5 changes", g.changed)
	}
}

func TestSourcesRefused(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.must(t, 201, "POST", "/api/v1/sources", stripeSource)
	for _, test := range []struct {
		name, method, path, body string
		kind                     api.ProblemType
		fields, detail           string // detail: part of it
	}{
		{"nothing given", "POST", "", `{}`, api.ProblemInvalid, "name provider", ""},
		{"bad name", "POST", "", `{"name": "Shop!", "provider": "stripe"}`, api.ProblemInvalid, "name", ""},
		{"negative limit", "POST", "", `{"name": "x", "provider": "none", "body_limit": -1}`, api.ProblemInvalid, "body_limit", ""},
		{"settings no object", "POST", "", `{"name": "x", "provider": "none", "settings": [1]}`, api.ProblemInvalid, "settings", ""},
		{"unknown provider", "POST", "", `{"name": "x", "provider": "nobody"}`, api.ProblemInvalid, "", "nobody"},
		{"unknown variant", "POST", "", `{"name": "x", "provider": "stripe", "variant": "v9", "secrets": ["` + planted + `"]}`, api.ProblemInvalid, "", "v9"},
		{"unknown setting", "POST", "", `{"name": "x", "provider": "stripe", "secrets": ["` + planted + `"], "settings": {"colour": 1}}`, api.ProblemInvalid, "", "colour"},
		{"no secret", "POST", "", `{"name": "x", "provider": "stripe"}`, api.ProblemInvalid, "", "secret"},
		{"empty secret", "POST", "", `{"name": "x", "provider": "stripe", "secrets": [""]}`, api.ProblemInvalid, "", "secret"},
		{"one blank secret of two", "POST", "", `{"name": "x", "provider": "stripe", "secrets": ["whsec_` + planted + `", " \t"]}`, api.ProblemInvalid, "", "secret"},
		{"change to no secrets", "PATCH", "/shop", `{"secrets": []}`, api.ProblemInvalid, "", "secret"},
		{"change of the name", "PATCH", "/shop", `{"name": "other"}`, api.ProblemBadRequest, "name", ""},
		{"change to an unknown provider", "PATCH", "/shop", `{"provider": "nobody"}`, api.ProblemInvalid, "", "nobody"},
		{"NUL in a secret", "POST", "", `{"name": "x", "provider": "stripe", "secrets": ["a\u0000b"]}`, api.ProblemInvalid, "secrets[0]", ""},
	} {
		p := g.refused(t, test.kind, test.method, "/api/v1/sources"+test.path, test.body)
		if got := fields(p); got != test.fields {
			t.Errorf("%s: the fields are %q, want %q", test.name, got, test.fields)
		}
		if test.detail != "" && (p.Detail == nil || !strings.Contains(*p.Detail, test.detail)) {
			t.Errorf("%s: the problem is %+v, want a detail with %q", test.name, p, test.detail)
		}
	}
	if got := into[api.Source](t, g.must(t, 200, "GET", "/api/v1/sources/shop", "")); got.SecretCount != 1 || got.Provider != "stripe" {
		t.Errorf("a refused change changed it to %+v", got)
	}
	if g.changed != 1 {
		t.Errorf("Changed was called %d times, want 1", g.changed)
	}
}

func TestHandlers(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.must(t, 201, "POST", "/api/v1/sources", stripeSource)
	a := g.must(t, 201, "POST", "/api/v1/handlers", hookHandler)
	created := into[api.CreatedHandler](t, a)
	key, ok := strings.CutPrefix(created.Secret, "whsec_")
	if !ok || len(key) != 44 {
		t.Errorf("the secret is %q, want whsec_ and 32 bytes as base64", created.Secret)
	}
	h := created.Handler
	if h.Timeout != "30s" || h.BackoffBase != "5s" || h.BackoffCap != "1h" || h.Concurrency != 10 || h.MaxRetryCount != 12 ||
		!slices.Equal(h.MessageTypes, []string{"*"}) || h.PermanentStatuses == nil || h.Paused || h.SecretCount != 1 {
		t.Errorf("created with the defaults %+v", h)
	}
	changed := into[api.HandlerView](t, g.must(t, 200, "PATCH", "/api/v1/handlers/books", `{"paused": true, "max_retry_count": 0,
"timeout": "1m30s", "message_types": ["charge.*", ""], "permanent_statuses": [410, 422], "sources": ["*"], "url": "http://127.0.0.1:9/x?a=b"}`))
	if !changed.Paused || changed.MaxRetryCount != 0 || changed.Timeout != "1m30s" || changed.URL != "http://127.0.0.1:9/x?a=b" ||
		!slices.Equal(changed.PermanentStatuses, []int{410, 422}) || changed.Concurrency != 10 || !slices.Equal(changed.Sources, []string{"*"}) {
		t.Errorf("changed to %+v", changed)
	}
	changed = into[api.HandlerView](t, g.must(t, 200, "PATCH", "/api/v1/handlers/books", `{"paused": false, "permanent_statuses": []}`))
	if changed.Paused || len(changed.PermanentStatuses) != 0 || changed.Timeout != "1m30s" {
		t.Errorf("changed to %+v", changed)
	}
	// After the answer that created it, no answer has the signing secret.
	for _, path := range []string{"/api/v1/handlers", "/api/v1/handlers/books"} {
		if a := g.must(t, 200, "GET", path, ""); strings.Contains(a.text, "whsec") || strings.Contains(a.text, key) {
			t.Errorf("GET %s shows the secret: %s", path, a.text)
		}
	}
	if list := into[api.HandlerList](t, g.must(t, 200, "GET", "/api/v1/handlers", "")); len(list.Items) != 1 || list.Items[0].Name != "books" {
		t.Errorf("the list is %+v", list)
	}
	g.refused(t, api.ProblemNameTaken, "POST", "/api/v1/handlers", hookHandler)
	g.must(t, 204, "DELETE", "/api/v1/handlers/books", "")
	g.refused(t, api.ProblemNotFound, "GET", "/api/v1/handlers/books", "")
	other := into[api.CreatedHandler](t, g.must(t, 201, "POST", "/api/v1/handlers", hookHandler))
	if other.Secret == created.Secret {
		t.Error("two handlers have one secret")
	}
}

func TestHandlersRefused(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.must(t, 201, "POST", "/api/v1/sources", stripeSource)
	g.must(t, 201, "POST", "/api/v1/handlers", hookHandler)
	for _, test := range []struct{ field, value string }{
		{"name", `""`},
		{"name", `"` + strings.Repeat("a", 64) + `"`},
		{"name", `"a/b"`},
		{"url", `"books.example/hook"`},
		{"url", `"ftp://books.example"`},
		{"url", `"https://"`},
		{"url", `"https://:80/x"`},
		{"url", `"https://user:pass@books.example"`},
		{"url", `"https://books.example/` + strings.Repeat("x", 2048) + `"`},
		{"sources", `[]`},
		{"sources[0]", `["shops"]`},
		{"sources[1]", `["shop", "sh*"]`},
		{"sources[1]", `["shop", ""]`},
		{"message_types", `[]`},
		{"message_types[1]", `["ok", "[bad"]`},
		{"concurrency", `0`},
		{"concurrency", `1001`},
		{"max_retry_count", `-1`},
		{"max_retry_count", `101`},
		{"timeout", `"999ms"`},
		{"timeout", `"10m1s"`},
		{"timeout", `"soon"`},
		{"timeout", `""`},
		{"backoff_base", `"0s"`},
		{"backoff_cap", `"-1s"`},
		{"backoff_cap", `"1s"`},
		{"permanent_statuses[0]", `[200]`},
		{"permanent_statuses[1]", `[410, 600]`},
	} {
		field, _, _ := strings.Cut(test.field, "[")
		body := map[string]any{"name": "x", "url": "https://books.example", "sources": []string{"*"}}
		body[field] = json.RawMessage(test.value)
		text, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		if got := fields(g.refused(t, api.ProblemInvalid, "POST", "/api/v1/handlers", string(text))); got != test.field {
			t.Errorf("%s: the fields are %q, want %q", text, got, test.field)
		}
		if field != "name" {
			change := fmt.Sprintf(`{%q: %s}`, field, test.value)
			if got := fields(g.refused(t, api.ProblemInvalid, "PATCH", "/api/v1/handlers/books", change)); got != test.field {
				t.Errorf("%s: the fields are %q, want %q", change, got, test.field)
			}
		}
	}
	p := g.refused(t, api.ProblemInvalid, "POST", "/api/v1/handlers", `{"name": "", "url": "x", "sources": ["*"], "timeout": "1h"}`)
	if got := fields(p); got != "name timeout url" {
		t.Errorf("of several mistakes %q are told, want all", got)
	}
	if list := into[api.HandlerList](t, g.must(t, 200, "GET", "/api/v1/handlers", "")); len(list.Items) != 1 {
		t.Errorf("a refused handler was stored: %+v", list)
	}
}

func TestTokens(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	revoked, err := g.CreateToken(t.Context(), operator, &inbox.OperatorToken{Name: "revoked", Role: inbox.RoleAdmin, Scope: inbox.Everything()})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.RevokeToken(t.Context(), operator, "revoked"); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ name, header string }{
		{"none", ""},
		{"another scheme", "Basic " + g.token},
		{"no scheme", g.token},
		{"unknown", "Bearer inboxd_unknown"},
		{"shortened", "Bearer " + g.token[:len(g.token)-1]},
		{"empty", "Bearer "},
		{"revoked", "Bearer " + revoked},
	} {
		for _, operation := range operations(t) {
			request, err := http.NewRequestWithContext(t.Context(), operation.method, g.url+operation.path, strings.NewReader("{"))
			if err != nil {
				t.Fatal(err)
			}
			if test.header != "" {
				request.Header.Set("Authorization", test.header)
			}
			a := do(t, request)
			problem(t, a, api.ProblemUnauthorized, test.name+": "+operation.method+" "+operation.path)
			if !strings.HasPrefix(a.header.Get("WWW-Authenticate"), "Bearer") {
				t.Errorf("%s: WWW-Authenticate = %q", test.name, a.header.Get("WWW-Authenticate"))
			}
		}
	}
	request, _ := http.NewRequestWithContext(t.Context(), "GET", g.url+"/api/v1/sources", nil)
	request.Header.Set("Authorization", "bearer "+g.token) // RFC 9110: a scheme's case doesn't matter
	if a := do(t, request); a.status != 200 {
		t.Errorf("with the token: %d %s", a.status, a.text)
	}
	g.DB.Close()
	problem(t, g.send(t, "GET", "/api/v1/sources", ""), api.ProblemUnavailable, "with the database away")
}

// operation is one of openapi.yaml, its path with the prefix.
type operation struct {
	method, path string
	id           string
	role         inbox.Role
	scoped       bool
	query        string // values for the parameters that it can't do without
}

func operations(t *testing.T) []operation {
	t.Helper()
	text, err := os.ReadFile("../openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	type parameter struct {
		Name, In string
		Required bool
	}
	var contract struct {
		Servers []struct{ URL string }
		Paths   map[string]map[string]any
	}
	if err := yaml.Unmarshal(text, &contract); err != nil {
		t.Fatal(err)
	}
	var list []operation
	for _, path := range slices.Sorted(maps.Keys(contract.Paths)) {
		for _, method := range slices.Sorted(maps.Keys(contract.Paths[path])) {
			if method == "parameters" {
				continue
			}
			part, err := yaml.Marshal(contract.Paths[path][method])
			if err != nil {
				t.Fatal(err)
			}
			var o struct {
				OperationID string     `yaml:"operationId"`
				Role        inbox.Role `yaml:"x-role"`
				Scoped      bool       `yaml:"x-scoped"`
				Parameters  []parameter
			}
			if err := yaml.Unmarshal(part, &o); err != nil {
				t.Fatal(err)
			}
			query := url.Values{}
			for _, p := range o.Parameters {
				if p.In == "query" && p.Required {
					query.Set(p.Name, "x")
				}
			}
			list = append(list, operation{
				method: strings.ToUpper(method), path: contract.Servers[0].URL + path, id: o.OperationID, role: o.Role, scoped: o.Scoped,
				query: query.Encode(),
			})
		}
	}
	return list
}

// TestContract holds the routes and openapi.yaml to each other, and the file to what is served.
func TestContract(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	var routes []string
	err := chi.Walk(g.handler.(chi.Routes), func(method, route string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		if route != "/openapi.yaml" && route != "/docs" {
			routes = append(routes, method+" "+route)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var contract []string
	for _, o := range operations(t) {
		contract = append(contract, o.method+" "+o.path)
	}
	slices.Sort(routes)
	slices.Sort(contract)
	if len(contract) == 0 || !slices.Equal(routes, contract) {
		t.Errorf("the routes are\n%s\nand openapi.yaml has\n%s", strings.Join(routes, "\n"), strings.Join(contract, "\n"))
	}
	request, _ := http.NewRequestWithContext(t.Context(), "GET", g.url+"/openapi.yaml", nil) // no token
	a := do(t, request)
	text, err := os.ReadFile("../openapi.yaml")
	if err != nil || a.status != 200 || a.text != string(text) || a.header.Get("Content-Type") != "application/yaml" {
		t.Errorf("GET /openapi.yaml = %d %s, want the file", a.status, a.header.Get("Content-Type"))
	}
}

func TestBadRequests(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.must(t, 201, "POST", "/api/v1/sources", stripeSource)
	g.must(t, 201, "POST", "/api/v1/handlers", hookHandler)
	g.store(t, "m1", "m2", "m3")
	messages := into[api.MessageList](t, g.must(t, 200, "GET", "/api/v1/messages?limit=1", ""))
	if messages.Next == nil {
		t.Fatal("there is no next page of messages")
	}
	for _, test := range []struct {
		name, method, path, body string
		kind                     api.ProblemType
		fields                   string
	}{
		{"no such path", "GET", "/api/v1/nothing", "", api.ProblemNotFound, ""},
		{"no such root", "GET", "/", "", api.ProblemNotFound, ""},
		{"no such method", "PUT", "/api/v1/sources", "", api.ProblemMethodNotAllowed, ""},
		{"no body", "POST", "/api/v1/sources", "", api.ProblemBadRequest, ""},
		{"no JSON", "POST", "/api/v1/sources", "name=x", api.ProblemBadRequest, ""},
		{"half of a JSON", "POST", "/api/v1/sources", `{"name": "x"`, api.ProblemBadRequest, ""},
		{"two JSONs", "POST", "/api/v1/sources", `{"name": "x", "provider": "none"} {}`, api.ProblemBadRequest, ""},
		{"null", "PATCH", "/api/v1/sources/shop", `null`, api.ProblemBadRequest, ""},
		{"fields that are null", "PATCH", "/api/v1/sources/shop", `{"variant": null, "secrets": [null], "settings": {"a": null}}`, api.ProblemBadRequest, "secrets[0] variant"},
		{"a secret that isn't UTF-8", "POST", "/api/v1/sources", "{\"name\": \"x\", \"provider\": \"stripe\", \"secrets\": [\"whsec_\xff\"]}", api.ProblemBadRequest, ""},
		{"a reason that is kept nowhere", "DELETE", "/api/v1/handlers/books", `{"reason": "moved"}`, api.ProblemBadRequest, ""},
		{"a field twice", "PATCH", "/api/v1/handlers/books", `{"paused": true, "timeout": "5s", "paused": false}`, api.ProblemBadRequest, "paused"},
		{"a field twice within", "POST", "/api/v1/jobs", `{"action": "retry", "filter": {"handlr": "books"}, "filter": {"handler": "books"}}`, api.ProblemBadRequest, "filter"},
		{"a setting twice", "POST", "/api/v1/sources", `{"name": "x", "provider": "hmac", "secrets": ["s"], "settings": {"message_id": ["a", {"b": 1, "b": 2}]}}`, api.ProblemBadRequest, "b"},
		{"an array", "POST", "/api/v1/sources", `[]`, api.ProblemBadRequest, ""},
		{"unknown fields", "POST", "/api/v1/sources", `{"name": "x", "provider": "none", "secret": "s", "Enabled": true}`, api.ProblemBadRequest, "Enabled secret"},
		{"wrong type", "POST", "/api/v1/sources", `{"name": 7, "provider": "none"}`, api.ProblemBadRequest, "name"},
		{"wrong type in a list", "POST", "/api/v1/handlers", `{"name": "x", "url": "http://x", "sources": [1]}`, api.ProblemBadRequest, "sources"},
		{"a fraction", "PATCH", "/api/v1/handlers/books", `{"concurrency": 1.5}`, api.ProblemBadRequest, "concurrency"},
		{"a huge number", "PATCH", "/api/v1/handlers/books", `{"concurrency": 1e30}`, api.ProblemBadRequest, "concurrency"},
		{"too large", "POST", "/api/v1/sources", `{"name": "` + strings.Repeat("x", 1<<20) + `"}`, api.ProblemTooLarge, ""},
		{"unknown parameter", "GET", "/api/v1/messages?stauts=DONE", "", api.ProblemBadRequest, "stauts"},
		{"parameter where there is none", "GET", "/api/v1/sources?limit=3", "", api.ProblemBadRequest, "limit"},
		{"bad query", "GET", "/api/v1/messages?source=%zz", "", api.ProblemBadRequest, ""},
		{"limit is no number", "GET", "/api/v1/messages?limit=ten", "", api.ProblemBadRequest, "limit"},
		{"limit 0", "GET", "/api/v1/messages?limit=0", "", api.ProblemInvalid, "limit"},
		{"huge page", "GET", "/api/v1/deliveries?limit=501", "", api.ProblemInvalid, "limit"},
		{"unknown status", "GET", "/api/v1/messages?status=done", "", api.ProblemInvalid, "status"},
		{"status of no delivery", "GET", "/api/v1/deliveries?status=UNROUTED", "", api.ProblemInvalid, "status"},
		{"bad time", "GET", "/api/v1/messages?from=yesterday", "", api.ProblemBadRequest, "from"},
		{"times the wrong way round", "GET", "/api/v1/messages?from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z", "", api.ProblemInvalid, "to"},
		{"unknown source", "GET", "/api/v1/messages?source=nobody", "", api.ProblemInvalid, "source"},
		{"unknown handler", "GET", "/api/v1/deliveries?handler=nobody", "", api.ProblemInvalid, "handler"},
		{"NUL in a filter", "GET", "/api/v1/messages?biz_key=%00", "", api.ProblemInvalid, "biz_key"},
		{"cursor of nothing", "GET", "/api/v1/messages?cursor=xyz", "", api.ProblemBadRequest, "cursor"},
		{"cursor of another filter", "GET", "/api/v1/messages?status=DONE&cursor=" + *messages.Next, "", api.ProblemBadRequest, "cursor"},
		{"class of no failure", "GET", "/api/v1/deliveries?error_class=bad", "", api.ProblemInvalid, "error_class"},
		{"answer of no server", "GET", "/api/v1/deliveries?response_status=99", "", api.ProblemInvalid, "response_status"},
		{"class of messages", "GET", "/api/v1/messages?error_class=status", "", api.ProblemBadRequest, "error_class"},
		{"message no number", "GET", "/api/v1/attempts?message=x", "", api.ProblemInvalid, "message"},
		{"result of no outcome", "GET", "/api/v1/outcomes?result=FAILED", "", api.ProblemInvalid, "result"},
		{"cursor of the wrong kind", "GET", "/api/v1/outcomes?cursor=" + *messages.Next, "", api.ProblemBadRequest, "cursor"},
		{"no key", "GET", "/api/v1/lookup", "", api.ProblemBadRequest, "key"},
		{"empty key", "GET", "/api/v1/lookup?key=", "", api.ProblemInvalid, "key"},
		{"timeline of no message", "GET", "/api/v1/messages/999999/timeline", "", api.ProblemNotFound, ""},
		{"cursor that isn't base64", "GET", "/api/v1/messages?cursor=!", "", api.ProblemBadRequest, "cursor"},
		{"cursor of another list", "GET", "/api/v1/deliveries?cursor=" + *messages.Next, "", api.ProblemBadRequest, "cursor"},
		{"message id no number", "GET", "/api/v1/messages/abc", "", api.ProblemNotFound, ""},
		{"message id negative", "GET", "/api/v1/messages/-1", "", api.ProblemNotFound, ""},
		{"message id too large", "GET", "/api/v1/messages/99999999999999999999", "", api.ProblemNotFound, ""},
		{"message id the largest", "GET", "/api/v1/messages/9223372036854775807", "", api.ProblemNotFound, ""},
		{"message id in another spelling", "GET", "/api/v1/messages/+1", "", api.ProblemNotFound, ""},
		{"no such message", "GET", "/api/v1/messages/4711", "", api.ProblemNotFound, ""},
		{"replay of no message", "POST", "/api/v1/messages/4711/replay", "", api.ProblemNotFound, ""},
		{"delivery id without handler", "GET", "/api/v1/deliveries/1", "", api.ProblemNotFound, ""},
		{"no such delivery", "GET", "/api/v1/deliveries/1.4711", "", api.ProblemNotFound, ""},
		{"action on no delivery", "POST", "/api/v1/deliveries/1.4711/retry", `{"claim_seq": 1}`, api.ProblemNotFound, ""},
		{"action without claim_seq", "POST", "/api/v1/deliveries/1.1/discard", `{}`, api.ProblemInvalid, "claim_seq"},
		{"long reason", "POST", "/api/v1/deliveries/1.1/done", `{"claim_seq": 1, "reason": "` + strings.Repeat("x", 501) + `"}`, api.ProblemInvalid, "reason"},
		{"replay to nobody", "POST", "/api/v1/messages/1/replay", `{"handlers": ["books", "nobody"]}`, api.ProblemInvalid, "handlers[1]"},
		{"replay to an empty list", "POST", "/api/v1/messages/1/replay", `{"handlers": []}`, api.ProblemInvalid, "handlers"},
	} {
		if got := fields(g.refused(t, test.kind, test.method, test.path, test.body)); got != test.fields {
			t.Errorf("%s: the fields are %q, want %q", test.name, got, test.fields)
		}
	}
	request, _ := http.NewRequestWithContext(t.Context(), "POST", g.url+"/api/v1/sources", strings.NewReader(stripeSource))
	request.Header.Set("Authorization", "Bearer "+g.token)
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	problem(t, do(t, request), api.ProblemUnsupportedMediaType, "a form")
}

// store puts messages of the source shop into the database, routed as ingest does, and returns their
// numbers.
func (g *gateway) store(t *testing.T, ids ...string) []int64 {
	t.Helper()
	return g.storeAt(t, "shop", ids...)
}

func (g *gateway) storeAt(t *testing.T, source string, ids ...string) []int64 {
	t.Helper()
	snapshots := g.Snapshots()
	if err := snapshots.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	snapshot := snapshots.Current()
	var (
		batch   []inbox.Message
		numbers []int64
	)
	for _, id := range ids {
		body := []byte(`{"id": "` + id + `"}` + "\x00")
		sum := sha256.Sum256(body)
		batch = append(batch, inbox.Message{
			SourceID: snapshot.Source(source).ID, MessageID: id, MessageType: "charge.paid", BizKey: "order " + id,
			ContentType: "application/json", Headers: []byte("X-Shop: a: b\r\nX-Odd: \xff\r\n"), Body: body, BodyHash: [16]byte(sum[:16]),
			EventTime: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Routes: snapshot.Route(source, "charge.paid"),
		})
	}
	stored, err := g.Insert(t.Context(), snapshot.Version, batch)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range stored {
		numbers = append(numbers, s.ID)
	}
	return numbers
}

// run claims what is ready at a handler and records the same result for all.
func (g *gateway) run(t *testing.T, handler string, verdict inbox.Verdict) {
	t.Helper()
	id, err := g.HandlerNamed(t.Context(), handler)
	if err != nil {
		t.Fatal(err)
	}
	var token inbox.Token
	rand.Read(token[:]) // never fails
	claims, _, err := g.Claim(t.Context(), "worker-1", token, []inbox.Want{{HandlerID: id, Free: 100, Lease: time.Minute}})
	if err != nil {
		t.Fatal(err)
	}
	var results []inbox.Result
	for _, c := range claims {
		r := inbox.Result{Claim: c, Verdict: verdict, ResponseStatus: 200, Duration: 12 * time.Millisecond}
		if verdict != inbox.VerdictDone {
			r.ResponseStatus, r.Class, r.Error, r.ResponseBody = 500, inbox.ClassStatus, "answered 500", []byte("oops\xff")
		}
		results = append(results, r)
	}
	if _, err := g.Record(t.Context(), "worker-1", results); err != nil {
		t.Fatal(err)
	}
}

func TestMessagesAndDeliveries(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.must(t, 201, "POST", "/api/v1/sources", stripeSource)
	lonely := g.store(t, "lonely")[0]
	g.must(t, 201, "POST", "/api/v1/handlers", hookHandler)
	g.must(t, 201, "POST", "/api/v1/handlers", `{"name": "mail", "url": "http://mail.example", "sources": ["*"], "message_types": ["charge.*"]}`)
	first := g.store(t, "first")[0]
	g.run(t, "books", inbox.VerdictDone)
	g.run(t, "mail", inbox.VerdictPermanent)
	second := g.store(t, "second")[0]

	list := into[api.MessageList](t, g.must(t, 200, "GET", "/api/v1/messages", ""))
	var got []string
	for _, m := range list.Items {
		got = append(got, m.ID+" "+string(m.Status))
	}
	want := []string{fmt.Sprintf("%d PENDING", second), fmt.Sprintf("%d MANUAL_REQUIRED", first), fmt.Sprintf("%d UNROUTED", lonely)}
	if !slices.Equal(got, want) || list.Next != nil {
		t.Errorf("messages = %q, next %v, want %q", got, list.Next, want)
	}
	m := list.Items[1]
	if m.Source != "shop" || m.MessageID != "first" || m.MessageType != "charge.paid" || *m.BizKey != "order first" || m.BodySize != 16 ||
		!m.EventTime.Equal(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)) || m.ReceivedAt.IsZero() || m.OrderingKey != nil {
		t.Errorf("the message is %+v", m)
	}
	for _, test := range []struct {
		path string
		want int
	}{
		{"/messages?status=MANUAL_REQUIRED", 1},
		{"/messages?status=DONE", 0},
		{"/messages?status=DONE&handler=books", 1},
		{"/messages?handler=mail", 2},
		{"/messages?message_id=first", 1},
		{"/messages?biz_key=order+second&source=shop&message_type=charge.paid", 1},
		{"/messages?from=2020-01-01T00:00:00Z", 3},
		{"/messages?to=2020-01-01T00:00:00%2B01:00", 0},
		{"/deliveries", 4},
		{"/deliveries?status=DONE", 1},
		{"/deliveries?status=PENDING&handler=books", 1},
		{"/deliveries?message_id=first", 2},
		{"/deliveries?error_class=status", 1},
		{"/deliveries?error_class=timeout", 0},
		{"/deliveries?response_status=500", 1},
		{"/deliveries?response_status=200", 1},
		{"/messages?ordering_key=none", 0},
	} {
		items := into[struct{ Items []json.RawMessage }](t, g.must(t, 200, "GET", "/api/v1"+test.path, "")).Items
		if len(items) != test.want || items == nil {
			t.Errorf("GET %s has %d items, want %d", test.path, len(items), test.want)
		}
	}

	detail := into[api.MessageDetail](t, g.must(t, 200, "GET", fmt.Sprintf("/api/v1/messages/%d", first), ""))
	if string(detail.Body) != `{"id": "first"}`+"\x00" || !slices.Equal(detail.Headers, []api.Header{{Name: "X-Shop", Value: "a: b"}, {Name: "X-Odd", Value: "\uFFFD"}}) {
		t.Errorf("the message is %+v", detail)
	}
	if len(detail.Deliveries) != 2 || detail.Deliveries[0].Handler != "mail" || detail.Deliveries[1].Status != "DONE" {
		t.Errorf("its deliveries are %+v", detail.Deliveries)
	}
	parked := detail.Deliveries[0]
	if parked.Status != "MANUAL_REQUIRED" || *parked.LastError != "answered 500" || parked.ClaimSeq == 0 || parked.NextRetryTime != nil || parked.FinishedAt != nil {
		t.Errorf("the parked delivery is %+v", parked)
	}
	delivery := into[api.DeliveryDetail](t, g.must(t, 200, "GET", "/api/v1/deliveries/"+parked.ID, ""))
	if len(delivery.Attempts) != 1 || len(delivery.Outcomes) != 0 {
		t.Fatalf("the delivery is %+v", delivery)
	}
	a := delivery.Attempts[0]
	if a.Class != "status" || *a.ResponseStatus != 500 || a.ResponseBody != "oops\uFFFD" || *a.Duration != "12ms" || a.Owner != "worker-1" || a.ClaimSeq != parked.ClaimSeq {
		t.Errorf("the attempt is %+v", a)
	}
	ended := into[api.DeliveryDetail](t, g.must(t, 200, "GET", "/api/v1/deliveries/"+detail.Deliveries[1].ID, ""))
	if len(ended.Outcomes) != 1 || ended.Outcomes[0].Result != "DONE" || ended.Outcomes[0].Attempts != 1 || *ended.Outcomes[0].Duration != "12ms" ||
		ended.Delivery.FinishedAt == nil || *ended.Delivery.ResponseStatus != 200 {
		t.Errorf("the ended delivery is %+v", ended)
	}
	attempts := into[api.AttemptList](t, g.must(t, 200, "GET", "/api/v1/attempts?error_class=status&response_status=500&handler=mail&source=shop&message="+detail.Message.ID, ""))
	if len(attempts.Items) != 1 || attempts.Items[0].Delivery != parked.ID || attempts.Items[0].Handler != "mail" || attempts.Items[0].Attempt.Class != "status" {
		t.Errorf("the attempts are %+v", attempts)
	}
	outcomes := into[api.OutcomeList](t, g.must(t, 200, "GET", "/api/v1/outcomes", ""))
	if len(outcomes.Items) != 2 || outcomes.Items[0].Result != "DONE" || *outcomes.Items[0].Handler != "books" || outcomes.Items[0].ClaimedAt == nil ||
		outcomes.Items[1].Result != "UNROUTED" || outcomes.Items[1].Delivery != nil {
		t.Errorf("the outcomes are %+v", outcomes)
	}
	for path, want := range map[string]int{"/outcomes?result=UNROUTED": 1, "/outcomes?response_status=204": 0, "/attempts?to=2020-01-01T00:00:00Z": 0, "/lookup?key=order+first": 1, "/lookup?key=second": 1} {
		if items := into[struct{ Items []json.RawMessage }](t, g.must(t, 200, "GET", "/api/v1"+path, "")).Items; len(items) != want || items == nil {
			t.Errorf("GET %s has %d items, want %d", path, len(items), want)
		}
	}
	timeline := into[api.Timeline](t, g.must(t, 200, "GET", fmt.Sprintf("/api/v1/messages/%d/timeline", first), ""))
	if last := timeline.Events[len(timeline.Events)-1]; timeline.Message.ID != detail.Message.ID || last.Kind != "parked" || *last.Delivery != parked.ID || len(timeline.NotRouted) != 0 {
		t.Errorf("the timeline is %+v", timeline)
	}
	// A handler that is gone is still found by its name, and so are its deliveries.
	g.must(t, 204, "DELETE", "/api/v1/handlers/books", "")
	if list := into[api.DeliveryList](t, g.must(t, 200, "GET", "/api/v1/deliveries?handler=books&status=DONE", "")); len(list.Items) != 1 {
		t.Errorf("the deleted handler's deliveries are %+v", list)
	}
}

func TestOperate(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.must(t, 201, "POST", "/api/v1/sources", stripeSource)
	g.must(t, 201, "POST", "/api/v1/handlers", hookHandler)
	id := g.store(t, "first")[0]
	g.run(t, "books", inbox.VerdictPermanent)
	parked := into[api.DeliveryList](t, g.must(t, 200, "GET", "/api/v1/deliveries?status=MANUAL_REQUIRED", "")).Items[0]
	path := "/api/v1/deliveries/" + parked.ID
	seen := fmt.Sprintf(`{"claim_seq": %d, "reason": "as agreed"}`, parked.ClaimSeq)

	for _, action := range []string{"retry", "discard", "done"} {
		p := g.refused(t, api.ProblemConflict, "POST", path+"/"+action, fmt.Sprintf(`{"claim_seq": %d}`, parked.ClaimSeq+1))
		if p.Detail == nil || !strings.Contains(*p.Detail, fmt.Sprint(parked.ClaimSeq)) {
			t.Errorf("%s: the problem is %+v, want the claim_seq of now", action, p)
		}
	}
	g.refused(t, api.ProblemConflict, "POST", fmt.Sprintf("/api/v1/messages/%d/replay", id), `{"handlers": ["books"]}`)
	if g.ready != 0 {
		t.Errorf("Ready was called %d times for what was refused", g.ready)
	}

	d := into[api.Delivery](t, g.must(t, 200, "POST", path+"/retry", seen))
	if d.Status != "PENDING" || d.RetryCount != 0 || d.NextRetryTime == nil || d.ClaimSeq != parked.ClaimSeq {
		t.Errorf("retried to %+v", d)
	}
	g.refused(t, api.ProblemConflict, "POST", path+"/retry", seen) // it isn't parked any more
	g.run(t, "books", inbox.VerdictPermanent)
	g.refused(t, api.ProblemConflict, "POST", path+"/discard", seen) // parked again, but by a later claim

	parked = into[api.DeliveryDetail](t, g.must(t, 200, "GET", path, "")).Delivery
	g.must(t, 200, "POST", path+"/retry", fmt.Sprintf(`{"claim_seq": %d}`, parked.ClaimSeq))
	g.run(t, "books", inbox.VerdictPermanent)
	parked = into[api.DeliveryDetail](t, g.must(t, 200, "GET", path, "")).Delivery
	d = into[api.Delivery](t, g.must(t, 200, "POST", path+"/discard", fmt.Sprintf(`{"claim_seq": %d, "reason": "as agreed"}`, parked.ClaimSeq)))
	if d.Status != "DISCARDED" || *d.LastError != "as agreed" || d.FinishedAt == nil {
		t.Errorf("discarded to %+v", d)
	}
	message := into[api.MessageDetail](t, g.must(t, 200, "GET", fmt.Sprintf("/api/v1/messages/%d", id), "")).Message
	if message.Status != "DONE" || !message.Discarded {
		t.Errorf("the message is %+v, want DONE with the mark", message)
	}

	replayed := into[api.Replayed](t, g.must(t, 200, "POST", fmt.Sprintf("/api/v1/messages/%d/replay", id), ""))
	if len(replayed.Deliveries) != 1 || replayed.Deliveries[0].ReplayNo != 1 || replayed.Deliveries[0].Status != "PENDING" ||
		replayed.Deliveries[0].ClaimSeq != parked.ClaimSeq {
		t.Errorf("replayed %+v", replayed)
	}
	g.refused(t, api.ProblemConflict, "POST", fmt.Sprintf("/api/v1/messages/%d/replay", id), "")
	g.run(t, "books", inbox.VerdictPermanent)
	parked = into[api.DeliveryDetail](t, g.must(t, 200, "GET", path, "")).Delivery
	d = into[api.Delivery](t, g.must(t, 200, "POST", path+"/done", fmt.Sprintf(`{"claim_seq": %d}`, parked.ClaimSeq)))
	if d.Status != "DONE" || d.ReplayNo != 1 {
		t.Errorf("finished to %+v", d)
	}
	detail := into[api.DeliveryDetail](t, g.must(t, 200, "GET", path, ""))
	if len(detail.Outcomes) != 2 || detail.Outcomes[1].Result != "DONE" || len(detail.Attempts) != 4 {
		t.Errorf("the ledgers are %+v", detail)
	}
	g.must(t, 200, "POST", fmt.Sprintf("/api/v1/messages/%d/replay", id), `{"handlers": ["books", "books"], "reason": "again"}`)
	if g.ready != 4 {
		t.Errorf("Ready was called %d times, want 4", g.ready)
	}
	if _, violations, err := g.Check(t.Context()); err != nil || len(violations) > 0 {
		t.Errorf("Check = %+v, %v", violations, err)
	}
}

// TestTwoOperators lets several act on the same parked delivery at once, as they all were shown it: one wins,
// the others are told that it has moved on.
func TestTwoOperators(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.must(t, 201, "POST", "/api/v1/sources", stripeSource)
	g.must(t, 201, "POST", "/api/v1/handlers", hookHandler)
	for round := range 10 {
		g.store(t, fmt.Sprintf("m%d", round))
		g.run(t, "books", inbox.VerdictPermanent)
		parked := into[api.DeliveryList](t, g.must(t, 200, "GET", "/api/v1/deliveries?status=MANUAL_REQUIRED", "")).Items[0]
		seen := fmt.Sprintf(`{"claim_seq": %d}`, parked.ClaimSeq)
		actions := []string{"retry", "discard", "done", "retry"}
		requests, answers := make([]*http.Request, len(actions)), make([]answer, len(actions))
		for i, action := range actions {
			var err error
			requests[i], err = http.NewRequestWithContext(t.Context(), "POST", g.url+"/api/v1/deliveries/"+parked.ID+"/"+action, strings.NewReader(seen))
			if err != nil {
				t.Fatal(err)
			}
			requests[i].Header.Set("Authorization", "Bearer "+g.token)
			requests[i].Header.Set("Content-Type", "application/json")
		}
		var operators sync.WaitGroup
		start := make(chan struct{})
		for i, request := range requests {
			operators.Go(func() {
				<-start
				client := &http.Client{Transport: openAPI().Transport(http.DefaultTransport, func(_ contract.Exchange, err error) {
					if err != nil {
						t.Error(err)
					}
				})}
				response, err := client.Do(request)
				if err != nil {
					t.Error(err)
					return
				}
				defer response.Body.Close()
				text, err := io.ReadAll(response.Body)
				if err != nil {
					t.Error(err)
				}
				answers[i] = answer{response.StatusCode, response.Header, string(text)}
			})
		}
		close(start)
		operators.Wait()
		var won []string
		for i, a := range answers {
			if a.status == 200 {
				won = append(won, actions[i])
				continue
			}
			problem(t, a, api.ProblemConflict, actions[i])
		}
		if len(won) != 1 {
			t.Errorf("round %d: %v were answered 200, want one", round, won)
		}
		// What the winner did stands; a retried delivery goes out of the next round's way.
		d := into[api.DeliveryDetail](t, g.must(t, 200, "GET", "/api/v1/deliveries/"+parked.ID, "")).Delivery
		want := map[string]api.DeliveryStatus{"retry": "PENDING", "discard": "DISCARDED", "done": "DONE"}
		if len(won) == 1 && d.Status != want[won[0]] {
			t.Errorf("round %d: %s won, and the delivery is %s", round, won[0], d.Status)
		}
		if d.Status == "PENDING" {
			g.run(t, "books", inbox.VerdictDone)
		}
	}
	if _, violations, err := g.Check(t.Context()); err != nil || len(violations) > 0 {
		t.Errorf("Check = %+v, %v", violations, err)
	}
}

// TestPages follows the cursors of both lists while messages arrive.
func TestPages(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.must(t, 201, "POST", "/api/v1/sources", stripeSource)
	g.must(t, 201, "POST", "/api/v1/handlers", hookHandler)
	g.must(t, 201, "POST", "/api/v1/handlers", strings.Replace(hookHandler, "books", "mail", 1))
	var ids []string
	for i := range 20 {
		ids = append(ids, fmt.Sprintf("m%d", i))
	}
	g.store(t, ids...)
	for _, list := range []struct {
		path string
		want int
	}{{"/api/v1/messages", 20}, {"/api/v1/deliveries", 40}} {
		before := g.send(t, "GET", list.path+"?limit=500", "").text
		all := into[struct{ Items []struct{ ID string } }](t, answer{text: before}).Items[:list.want]
		var got []struct{ ID string }
		for query, pages := "?limit=3", 0; ; pages++ {
			page := into[struct {
				Items []struct{ ID string }
				Next  *string
			}](t, g.must(t, 200, "GET", list.path+query, ""))
			got = append(got, page.Items...)
			if page.Next == nil {
				break
			}
			query = "?limit=3&cursor=" + url.QueryEscape(*page.Next)
			g.store(t, fmt.Sprintf("%s late %d", list.path, pages))
		}
		if len(got) < list.want || !slices.Equal(got[:list.want], all) {
			t.Errorf("%s by pages = %v, want %v", list.path, got, all)
		}
	}
}
