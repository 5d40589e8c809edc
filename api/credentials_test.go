package api_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/inboxd/inboxd/api"
)

func TestCredentials(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	const path = "/api/v1/handlers/books"
	all := `{"headers": [{"name": "X-Key", "value": "` + planted + `1"}],
"oauth2": {"token_url": "https://auth.example/token", "client_id": "inboxd", "client_secret": "` + planted + `2", "scopes": ["a"], "params": {"audience": "` + planted + `3"}},
"tls": {"certificate": "` + planted + `4", "key": "` + planted + `5", "ca": "` + planted + `6"}}`
	created := into[api.CreatedHandler](t, g.must(t, 201, "POST", "/api/v1/handlers",
		`{"name": "books", "url": "https://books.example/hook", "sources": ["*"], "credentials": `+all+`}`))
	shown := created.Handler.Credentials
	if shown == nil || fmt.Sprintln(shown.Headers, shown.OAuth2.TokenURL, shown.OAuth2.ClientID, shown.OAuth2.ClientIn, shown.OAuth2.Scopes, shown.OAuth2.Params, shown.TLS.OwnCa) !=
		"[X-Key] https://auth.example/token inboxd header [a] [audience] true\n" || shown.Bearer != nil || shown.Basic != nil {
		t.Errorf("created with %+v", shown)
	}

	// Another URL asks for them again; the same one doesn't, nor does anything else.
	moved := g.refused(t, api.ProblemInvalid, "PATCH", path, `{"url": "https://elsewhere.example"}`)
	if fields(moved) != "credentials" || !strings.Contains(moved.Errors[0].Detail, "the URL changes") {
		t.Errorf("a changed URL: %+v", moved)
	}
	same := into[api.HandlerView](t, g.must(t, 200, "PATCH", path, `{"url": "https://books.example/hook", "paused": true}`))
	if same.Credentials == nil || same.Credentials.OAuth2 == nil {
		t.Errorf("after a change of something else there are %+v", same.Credentials)
	}
	basic := into[api.HandlerView](t, g.must(t, 200, "PATCH", path,
		`{"url": "https://elsewhere.example", "credentials": {"basic": {"username": "me", "password": "`+planted+`7"}}}`))
	if basic.Credentials.Basic == nil || basic.Credentials.Basic.Username != "me" || basic.Credentials.OAuth2 != nil || basic.URL != "https://elsewhere.example" {
		t.Errorf("given again there are %+v at %s", basic.Credentials, basic.URL)
	}
	none := into[api.HandlerView](t, g.must(t, 200, "PATCH", path, `{"url": "https://third.example", "credentials": {}}`))
	if none.Credentials != nil {
		t.Errorf("taken away there are %+v", none.Credentials)
	}
	g.must(t, 200, "PATCH", path, `{"url": "https://fourth.example"}`)
	bearer := into[api.HandlerView](t, g.must(t, 200, "PATCH", path, `{"credentials": {"bearer": "`+planted+`8"}}`))
	if bearer.Credentials.Bearer == nil || !*bearer.Credentials.Bearer {
		t.Errorf("with a bearer token there are %+v", bearer.Credentials)
	}
	g.must(t, 200, "GET", "/api/v1/handlers", "")
	if audit := g.must(t, 200, "GET", "/api/v1/audit?object=books", ""); !strings.Contains(audit.text, "basic me (new)") || !strings.Contains(audit.text, "oauth2 inboxd at https://auth.example/token (new)") {
		t.Errorf("the audit has %s", audit.text)
	}

	long := strings.Repeat("x", 16385)
	for _, try := range []struct{ credentials, fields string }{
		{`{"headers": [{"name": "X-Key"}]}`, "credentials.headers[0].value"},
		{`{"headers": [{"value": "x"}]}`, "credentials.headers[0].name"},
		{`{"bearer": ""}`, "credentials.bearer"},
		{`{"bearer": "` + long + `"}`, "credentials.bearer"},
		{`{"basic": {}}`, "credentials.basic.password credentials.basic.username"},
		{`{"oauth2": {"token_url": "x", "client_id": "c", "client_secret": "s", "client_in": "x"}}`, "credentials.oauth2.client_in credentials.oauth2.token_url"},
		{`{"tls": {"ca": ""}}`, "credentials.tls.ca"},
	} {
		if p := g.refused(t, api.ProblemInvalid, "PATCH", path, `{"credentials": `+try.credentials+`}`); fields(p) != try.fields {
			t.Errorf("%.60s names %q, want %q", try.credentials, fields(p), try.fields)
		}
	}
	if p := g.refused(t, api.ProblemBadRequest, "PATCH", path, `{"credentials": {"oauth2": {"scope": "x"}}}`); fields(p) != "credentials.oauth2.scope" {
		t.Errorf("an unknown field names %q", fields(p))
	}
}
