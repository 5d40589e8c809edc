package api_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/inboxd/inboxd/api"
	"github.com/inboxd/inboxd/inbox"
)

// as makes a token and returns the gateway with it.
func (g *gateway) as(t *testing.T, token inbox.OperatorToken) *gateway {
	t.Helper()
	text, err := g.CreateToken(t.Context(), operator, &token)
	if err != nil {
		t.Fatal(err)
	}
	other := *g
	other.token = text
	return &other
}

// TestNeeds holds the table of roles and openapi.yaml to each other, and both to what roles are.
func TestNeeds(t *testing.T) {
	t.Parallel()
	roles, scoped := api.Needs()
	for _, o := range operations(t) {
		if o.id == "" || !slices.Contains(inbox.Roles(), o.role) {
			t.Errorf("%s %s: operationId %q with x-role %q, want a role of %q", o.method, o.path, o.id, o.role, inbox.Roles())
		}
		if roles[o.id] != o.role || scoped[o.id] != o.scoped {
			t.Errorf("%s: the table has the role %q, scoped %t; openapi.yaml has %q, %t", o.id, roles[o.id], scoped[o.id], o.role, o.scoped)
		}
		if o.method != "GET" && !o.role.Includes(inbox.RoleOperate) {
			t.Errorf("%s: %s with the role %q changes something", o.id, o.method, o.role)
		}
		if strings.Contains(o.path, "/tokens") && o.role != inbox.RoleAdmin {
			t.Errorf("%s: the role %q may touch tokens", o.id, o.role)
		}
		delete(roles, o.id)
	}
	for operation := range roles {
		t.Errorf("%s: in the table, but not in openapi.yaml", operation)
	}
}

// TestRoles tries each role on each operation: one that is too little is refused, and says what is needed; any
// other comes as far as the operation.
func TestRoles(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	for _, role := range inbox.Roles() {
		as := g.as(t, inbox.OperatorToken{Name: string(role), Role: role, Scope: inbox.Everything()})
		for _, o := range operations(t) {
			body := ""
			if o.method == "POST" || o.method == "PATCH" {
				body = "{}"
			}
			a := as.send(t, o.method, o.path+"?"+o.query, body)
			what := fmt.Sprintf("%s with the role %s", o.id, role)
			if role.Includes(o.role) {
				if a.status == 401 || a.status == 403 || a.status >= 500 {
					t.Errorf("%s = %d %s, want it to come to the operation", what, a.status, a.text)
				}
				continue
			}
			p := problem(t, a, api.ProblemForbidden, what)
			if p.Detail == nil || !strings.Contains(*p.Detail, string(o.role)) || !strings.Contains(*p.Detail, string(role)) {
				t.Errorf("%s: the problem is %+v, want both roles", what, p)
			}
		}
	}
	if g.changed != 0 || g.ready != 0 {
		t.Errorf("what was refused changed something: %d, %d", g.changed, g.ready)
	}
}

// TestScopedTokensAreRefused where an operation doesn't keep to scopes.
func TestScopedTokensAreRefused(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	for i, scope := range []inbox.Scope{
		{Sources: []string{"shop"}, Handlers: []string{"*"}},
		{Sources: []string{"*"}, Handlers: []string{"book*"}},
	} {
		as := g.as(t, inbox.OperatorToken{Name: fmt.Sprint("some", i), Role: inbox.RoleAdmin, Scope: scope})
		for _, o := range operations(t) {
			if !o.scoped {
				body := ""
				if o.method == "POST" || o.method == "PATCH" {
					body = "{}"
				}
				problem(t, as.send(t, o.method, o.path+"?"+o.query, body), api.ProblemForbidden, o.id)
			}
		}
	}
}

func TestTokenOperations(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	soon := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	created := into[api.CreatedToken](t, g.must(t, 201, "POST", "/api/v1/tokens",
		`{"name": "on-call", "role": "operate", "expires_at": "`+soon.Format(time.RFC3339)+`", "sources": ["shop-*"], "handlers": ["books", "mail"]}`))
	if !strings.HasPrefix(created.Secret, "inboxd_") || created.Token.Role != "operate" || !created.Token.Valid || !created.Token.ExpiresAt.Equal(soon) ||
		!slices.Equal(created.Token.Sources, []string{"shop-*"}) || !slices.Equal(created.Token.Handlers, []string{"books", "mail"}) {
		t.Errorf("created %+v", created)
	}
	reader := into[api.CreatedToken](t, g.must(t, 201, "POST", "/api/v1/tokens", `{"name": "reader", "role": "read"}`))
	if !slices.Equal(reader.Token.Sources, []string{"*"}) || !slices.Equal(reader.Token.Handlers, []string{"*"}) || reader.Token.ExpiresAt != nil {
		t.Errorf("created with the defaults %+v", reader)
	}
	g.refused(t, api.ProblemNameTaken, "POST", "/api/v1/tokens", `{"name": "reader", "role": "read"}`)

	list := g.must(t, 200, "GET", "/api/v1/tokens", "")
	var names []string
	for _, item := range into[api.TokenList](t, list).Items {
		names = append(names, fmt.Sprintf("%s %s %t", item.Name, item.Role, item.Valid))
	}
	if want := []string{"test admin true", "on-call operate true", "reader read true"}; !slices.Equal(names, want) {
		t.Errorf("the tokens are %q, want %q", names, want)
	}
	audit := g.must(t, 200, "GET", "/api/v1/audit?object=on-call", "")
	if !strings.Contains(audit.text, `"role":"operate"`) || !strings.Contains(audit.text, "shop-*") {
		t.Errorf("the audit says %s", audit.text)
	}
	for _, a := range []answer{list, audit} {
		if strings.Contains(a.text, "inboxd_") || strings.Contains(a.text, created.Secret) {
			t.Errorf("an answer has a token's text: %s", a.text)
		}
	}

	as := *g
	as.token = reader.Secret
	as.must(t, 200, "GET", "/api/v1/sources", "")
	g.must(t, 204, "DELETE", "/api/v1/tokens/reader", "")
	as.refused(t, api.ProblemUnauthorized, "GET", "/api/v1/sources", "")
	g.refused(t, api.ProblemNotFound, "DELETE", "/api/v1/tokens/nobody", "")
	g.refused(t, api.ProblemNameTaken, "POST", "/api/v1/tokens", `{"name": "reader", "role": "read"}`) // or the audit would mean two

	far := `{"name": "far", "role": "read", "expires_at": "9999-12-31T23:59:59-12:00"}`
	if got := fields(g.refused(t, api.ProblemBadRequest, "POST", "/api/v1/tokens", far)); got != "expires_at" {
		t.Errorf("a time that can't be shown: the fields are %q", got)
	}
	for _, test := range []struct{ body, fields string }{
		{`{}`, "name role"},
		{`{"name": "a b", "role": "read"}`, "name"},
		{`{"name": "../x", "role": "read"}`, "name"},
		{`{"name": "x", "role": "root"}`, "role"},
		{`{"name": "x", "role": "read", "expires_at": "2020-01-01T00:00:00Z"}`, "expires_at"},
		{`{"name": "x", "role": "read", "sources": []}`, "sources"},
		{`{"name": "x", "role": "read", "handlers": ["ok", ""]}`, "handlers[1]"},
		{`{"name": "x", "role": "read", "handlers": ["[bad"]}`, "handlers[0]"},
	} {
		if got := fields(g.refused(t, api.ProblemInvalid, "POST", "/api/v1/tokens", test.body)); got != test.fields {
			t.Errorf("%s: the fields are %q, want %q", test.body, got, test.fields)
		}
	}
}

// TestExpiredToken: it is refused as an unknown one is.
func TestExpiredToken(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	as := g.as(t, inbox.OperatorToken{Name: "short", Role: inbox.RoleAdmin, Scope: inbox.Everything(), ExpiresAt: time.Now().Add(time.Hour)})
	as.must(t, 200, "GET", "/api/v1/sources", "")
	if _, err := g.pool.Exec(t.Context(), `UPDATE token SET expires_at = now() - interval '1 second' WHERE name = 'short'`); err != nil {
		t.Fatal(err)
	}
	expired := as.refused(t, api.ProblemUnauthorized, "GET", "/api/v1/sources", "")
	as.token = "inboxd_unknown"
	if unknown := as.refused(t, api.ProblemUnauthorized, "GET", "/api/v1/sources", ""); *unknown.Detail != *expired.Detail {
		t.Errorf("an expired token is answered %q, an unknown one %q", *expired.Detail, *unknown.Detail)
	}
	for _, item := range into[api.TokenList](t, g.must(t, 200, "GET", "/api/v1/tokens", "")).Items {
		if item.Valid != (item.Name == "test") {
			t.Errorf("%s is listed as valid: %t", item.Name, item.Valid)
		}
	}
}

// TestTries: who comes with too many unknown tokens waits, without a look at the database; others don't, nor does a
// token from the same address that was valid before.
func TestTries(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	tries := api.NewTries(3, time.Hour)
	guarded := api.RequireToken(g.DB, tries, zerolog.Nop())(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }))
	try := func(address, token string) *httptest.ResponseRecorder {
		request := httptest.NewRequestWithContext(t.Context(), "GET", "/", nil)
		request.RemoteAddr = address
		if token != "" {
			request.Header.Set("Authorization", "Bearer "+token)
		}
		request.Header.Set("X-Forwarded-For", fmt.Sprint(time.Now().UnixNano())) // is no way round it
		answer := httptest.NewRecorder()
		guarded.ServeHTTP(answer, request)
		return answer
	}
	fresh := g.as(t, inbox.OperatorToken{Name: "fresh", Role: inbox.RoleRead, Scope: inbox.Everything()}).token
	const guesser, neighbour = "192.0.2.7:1000", "192.0.2.8:1000"
	for range 10 { // valid tokens, and none at all, are no failures
		for _, token := range []string{g.token, ""} {
			if got := try(guesser, token).Code; got == http.StatusTooManyRequests {
				t.Fatalf("with the token %q: %d", token, got)
			}
		}
	}
	for i := range 6 {
		answer := try(fmt.Sprintf("192.0.2.7:%d", 2000+i), fmt.Sprintf("inboxd_guess%d", i))
		want := http.StatusUnauthorized
		if i >= 3 {
			want = http.StatusTooManyRequests
			if wait, err := strconv.Atoi(answer.Header().Get("Retry-After")); err != nil || wait < 1 || wait > 3600 {
				t.Errorf("Retry-After = %q, want the seconds until the next try", answer.Header().Get("Retry-After"))
			}
			if !strings.Contains(answer.Body.String(), string(api.ProblemTooManyTries)) {
				t.Errorf("answered %s", answer.Body.String())
			}
		}
		if answer.Code != want {
			t.Errorf("failure %d = %d, want %d", i+1, answer.Code, want)
		}
	}
	if got := try(guesser, fresh).Code; got != http.StatusTooManyRequests {
		t.Errorf("a guess that is right at last = %d, want 429 without a look", got)
	}
	if got := try(guesser, g.token).Code; got != http.StatusOK {
		t.Errorf("a token that was valid before = %d, want 200", got)
	}
	if got := try(neighbour, fresh).Code; got != http.StatusOK {
		t.Errorf("another address = %d, want 200", got)
	}
	if err := g.RevokeToken(t.Context(), operator, "fresh"); err != nil {
		t.Fatal(err)
	}
	if got := try(guesser, fresh).Code; got != http.StatusUnauthorized {
		t.Errorf("the first look at a token that is no longer valid = %d, want 401", got)
	}
	if got := try(guesser, fresh).Code; got != http.StatusTooManyRequests {
		t.Errorf("the next = %d, want 429", got)
	}
	// An IPv6 network counts as one.
	for i := range 4 {
		if got := try(fmt.Sprintf("[2001:db8::%x]:1", i+1), "inboxd_guess").Code; (got == http.StatusTooManyRequests) != (i == 3) {
			t.Errorf("address %d of one network: %d", i, got)
		}
	}
}

// TestTriesForget: whoever has many addresses fills no memory with them.
func TestTriesForget(t *testing.T) {
	t.Parallel()
	tries := api.NewTries(1, time.Hour)
	guarded := api.RequireToken(noTokens{}, tries, zerolog.Nop())(http.NotFoundHandler())
	for i := range 25_000 {
		request := httptest.NewRequestWithContext(t.Context(), "GET", "/", nil)
		request.RemoteAddr = fmt.Sprintf("10.%d.%d.%d:1", i>>16, i>>8&255, i&255)
		request.Header.Set("Authorization", "Bearer inboxd_guess")
		guarded.ServeHTTP(httptest.NewRecorder(), request)
	}
	if n := tries.Remembered(); n < 10_000 || n > 20_000 {
		t.Errorf("%d addresses are remembered, want 10,000 to 20,000", n)
	}
}

// noTokens is a store that has none.
type noTokens struct{}

func (noTokens) TokenByHash(context.Context, [sha256.Size]byte) (*inbox.OperatorToken, error) {
	return nil, inbox.ErrNotFound
}
