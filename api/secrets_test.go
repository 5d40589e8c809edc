package api_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/inboxd/inboxd/api"
	"github.com/inboxd/inboxd/inbox"
)

func TestSourceSecrets(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.must(t, 201, "POST", "/api/v1/sources", stripeSource)
	const path = "/api/v1/sources/shop/secrets"
	list := func() []api.Secret { return into[api.SecretList](t, g.must(t, 200, "GET", path, "")).Items }
	first := list()[0]
	if first.ID == "" || first.Kind != "sealed" || time.Since(first.AddedAt) > time.Hour || first.NotAfter != nil {
		t.Errorf("the first secret is %+v", first)
	}
	g.refused(t, api.ProblemConflict, "DELETE", path+"/"+first.ID, "")

	added := into[api.Secret](t, g.must(t, 201, "POST", path, `{"secret": "whsec_2`+planted+`", "reason": "a second endpoint"}`))
	g.refused(t, api.ProblemConflict, "POST", path, `{"secret": "whsec_2`+planted+`"}`)
	if got := list(); len(got) != 2 || got[0].ID != first.ID || got[1].ID != added.ID || added.ID == first.ID {
		t.Errorf("after an addition there are %+v", got)
	}
	g.must(t, 204, "DELETE", path+"/"+first.ID, "")
	g.refused(t, api.ProblemNotFound, "DELETE", path+"/"+first.ID, "")

	before := time.Now()
	rotated := into[api.SecretList](t, g.must(t, 200, "POST", path+"/rotate", `{"secret": "whsec_3`+planted+`"}`)).Items
	if len(rotated) != 2 || rotated[0].NotAfter != nil || rotated[1].ID != added.ID || rotated[1].NotAfter == nil ||
		rotated[1].NotAfter.Sub(before).Round(time.Hour) != 24*time.Hour {
		t.Errorf("rotated to %+v, want the old one for a day", rotated)
	}
	if p := g.refused(t, api.ProblemConflict, "DELETE", path+"/"+rotated[0].ID, ""); p.Detail == nil || !strings.Contains(*p.Detail, "without an end") {
		t.Errorf("retiring the only one without an end: %+v", p)
	}
	// A shorter overlap shortens, a longer one doesn't lengthen.
	rotated = into[api.SecretList](t, g.must(t, 200, "POST", path+"/rotate", `{"secret": "whsec_4`+planted+`", "overlap": "720h"}`)).Items
	if len(rotated) != 3 || rotated[2].NotAfter.Sub(before) > 25*time.Hour || rotated[1].NotAfter.Sub(before) < 700*time.Hour {
		t.Errorf("rotated to %+v", rotated)
	}
	// Back to one that is still there: it has no end then, and keeps its id.
	back := into[api.SecretList](t, g.must(t, 200, "POST", path+"/rotate", `{"secret": "whsec_2`+planted+`", "overlap": "0s"}`)).Items
	if len(back) != 1 || back[0].ID != added.ID || back[0].NotAfter != nil {
		t.Errorf("rotated back to %+v, want %s alone", back, added.ID)
	}
	// A whole new list keeps the ids of what it has again, and lifts ends.
	g.must(t, 200, "POST", path+"/rotate", `{"secret": "whsec_5`+planted+`"}`)
	g.must(t, 200, "PATCH", "/api/v1/sources/shop", `{"secrets": ["whsec_2`+planted+`", "whsec_6`+planted+`"]}`)
	if got := list(); len(got) != 2 || got[0].ID != added.ID || got[0].NotAfter != nil || got[1].ID == added.ID {
		t.Errorf("after a new list there are %+v", got)
	}

	for _, try := range []struct{ method, path, body, field string }{
		{"POST", "", `{}`, "secret"},
		{"POST", "", `{"secret": ""}`, "secret"},
		{"POST", "", `{"secret": "sealed:` + planted + `"}`, "secret"},
		{"POST", "", `{"secret": "a\u0000` + planted + `"}`, "secret"},
		{"POST", "", `{"secret": " "}`, ""}, // by the sheet, which names it
		{"POST", "/rotate", `{"secret": "a` + planted + `", "overlap": "721h"}`, "overlap"},
		{"POST", "/rotate", `{"overlap": "1h"}`, "secret"},
		{"POST", "/rotate", `{"secret": "sealed:` + planted + `"}`, "secret"},
	} {
		if p := g.refused(t, api.ProblemInvalid, try.method, path+try.path, try.body); fields(p) != try.field {
			t.Errorf("%s %s names %q, want %q", try.path, try.body, fields(p), try.field)
		}
	}
	for i := range 18 {
		g.must(t, 201, "POST", path, `{"secret": "`+strings.Repeat("x", i+1)+planted+`"}`)
	}
	g.refused(t, api.ProblemConflict, "POST", path, `{"secret": "one more `+planted+`"}`)
	for _, try := range [][2]string{{"GET", ""}, {"POST", `{"secret": "x"}`}} {
		g.refused(t, api.ProblemNotFound, try[0], "/api/v1/sources/nobody/secrets", try[1])
	}

	entries := into[api.AuditList](t, g.must(t, 200, "GET", "/api/v1/audit?object=shop&action=source.secret.add&limit=500", "")).Items
	oldest := entries[len(entries)-1]
	if len(entries) != 19 || oldest.Reason == nil || *oldest.Reason != "a second endpoint" {
		t.Errorf("the audit has %d additions, the oldest %+v", len(entries), oldest)
	}
	var after struct{ Secrets []string }
	if err := json.Unmarshal(oldest.After, &after); err != nil || len(after.Secrets) != 2 || after.Secrets[1] != "*** "+added.ID+" (new)" {
		t.Errorf("the audit shows the secrets as %q, %v", after.Secrets, err)
	}
}

func TestHandlerSecrets(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.must(t, 201, "POST", "/api/v1/sources", stripeSource)
	created := into[api.CreatedHandler](t, g.must(t, 201, "POST", "/api/v1/handlers", hookHandler))
	const path = "/api/v1/handlers/books/secrets"
	list := func() []api.Secret { return into[api.SecretList](t, g.must(t, 200, "GET", path, "")).Items }
	first := list()[0]
	g.refused(t, api.ProblemConflict, "DELETE", path+"/"+first.ID, "")

	made := into[api.RotatedSecret](t, g.must(t, 200, "POST", path+"/rotate", ""))
	if made.Secret == nil || !strings.HasPrefix(*made.Secret, "whsec_") || *made.Secret == created.Secret {
		t.Fatal("a rotation without a secret doesn't show a new one")
	}
	if len(made.Items) != 2 || made.Items[1].ID != first.ID || made.Items[1].NotAfter == nil || made.Items[0].NotAfter != nil {
		t.Errorf("rotated to %+v", made.Items)
	}
	h, err := g.Handler(t.Context(), "books")
	if err != nil || len(h.Secrets) != 2 || h.Secrets[0] != inbox.Secret(*made.Secret) || h.Secrets[1] != inbox.Secret(created.Secret) {
		t.Error("the handler doesn't sign with the new secret first, and the old one")
	}
	g.must(t, 204, "DELETE", path+"/"+first.ID, "")
	if got := list(); len(got) != 1 || got[0].ID != made.Items[0].ID {
		t.Errorf("after retiring there are %+v", got)
	}
	given := g.must(t, 200, "POST", path+"/rotate", `{"secret": "whsec_`+planted+`", "overlap": "0s", "note": "x"}`)
	if rotated := into[api.RotatedSecret](t, given); rotated.Secret != nil || len(rotated.Items) != 1 {
		t.Errorf("rotated to a given secret: %s", given.text)
	}
	g.refused(t, api.ProblemInvalid, "POST", path+"/rotate", `{"secret": "`+planted+`"}`)
	g.refused(t, api.ProblemNotFound, "POST", "/api/v1/handlers/nobody/secrets/rotate", "")
	g.refused(t, api.ProblemNotFound, "DELETE", path+"/"+first.ID, "")
}
