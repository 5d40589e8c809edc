package api_test

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/inboxd/inboxd/api"
	"github.com/inboxd/inboxd/inbox"
)

// twoTenants is a gateway with a shop and its handler, and what is foreign to them: a bank with its own, and a handler
// that gets everything. Whatever is foreign has that in its name. Of the shop, message "m1" is parked at books and done at
// the foreign handler, "m2" the other way round, and "m3" reached no handler. The token of mine is an admin's for the shop.
func twoTenants(t *testing.T) (g, mine *gateway) {
	t.Helper()
	g = newGateway(t)
	g.must(t, 201, "POST", "/api/v1/sources", stripeSource)
	g.must(t, 201, "POST", "/api/v1/sources", strings.Replace(stripeSource, "shop", "foreign-bank", 1))
	g.store(t, "m3")
	g.storeAt(t, "foreign-bank", "foreign-0")
	g.must(t, 201, "POST", "/api/v1/handlers", hookHandler)
	g.must(t, 201, "POST", "/api/v1/handlers", `{"name": "foreign-vault", "url": "https://foreign.example/vault", "sources": ["foreign-bank"]}`)
	g.must(t, 201, "POST", "/api/v1/handlers", `{"name": "foreign-all", "url": "https://foreign.example/all", "sources": ["*"]}`)
	g.store(t, "m1")
	g.storeAt(t, "foreign-bank", "foreign-1")
	g.run(t, "books", inbox.VerdictPermanent)
	g.run(t, "foreign-vault", inbox.VerdictPermanent)
	g.run(t, "foreign-all", inbox.VerdictDone)
	g.store(t, "m2")
	g.storeAt(t, "foreign-bank", "foreign-2")
	g.run(t, "books", inbox.VerdictDone)
	g.run(t, "foreign-vault", inbox.VerdictDone)
	g.run(t, "foreign-all", inbox.VerdictPermanent)
	g.storeAt(t, "foreign-bank", "foreign-3") // the newest, and still PENDING
	return g, g.as(t, inbox.OperatorToken{Name: "mine", Role: inbox.RoleAdmin, Scope: inbox.Scope{Sources: []string{"sh*"}, Handlers: []string{"books", "books-*"}}})
}

// numbers returns the messages' numbers by message id.
func (g *gateway) numbers(t *testing.T) map[string]string {
	t.Helper()
	numbers := map[string]string{}
	for _, m := range into[api.MessageList](t, g.must(t, 200, "GET", "/api/v1/messages", "")).Items {
		numbers[m.MessageID] = m.ID
	}
	return numbers
}

// rows is all that operators could change, as text.
func (g *gateway) rows(t *testing.T) string {
	t.Helper()
	var text string
	err := g.pool.QueryRow(t.Context(), `
SELECT string_agg(line, E'\n' ORDER BY line)
FROM (SELECT s::text FROM source AS s UNION ALL SELECT h::text FROM handler AS h UNION ALL SELECT t::text FROM token AS t
      UNION ALL SELECT d::text FROM delivery AS d UNION ALL SELECT o::text FROM outcome AS o UNION ALL SELECT a::text FROM audit AS a
      UNION ALL SELECT j::text FROM job AS j) AS all_rows (line)`).Scan(&text)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestForeignThings tries each operation that names something on what a token isn't for: it is answered as if that
// weren't there, and nothing changes. F9.
func TestForeignThings(t *testing.T) {
	t.Parallel()
	g, mine := twoTenants(t)
	numbers := g.numbers(t)
	handler := func(name string) string {
		id, err := g.HandlerNamed(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(id)
	}
	// Of a delivery the source, the handler or both are foreign.
	foreign := map[string][]string{
		"/sources/{name}":  {"foreign-bank"},
		"/handlers/{name}": {"foreign-vault", "foreign-all"},
		"/messages/{id}":   {numbers["foreign-1"], numbers["foreign-0"]},
		"/deliveries/{id}": {
			numbers["foreign-1"] + "." + handler("foreign-vault"), numbers["m2"] + "." + handler("foreign-all"), numbers["foreign-1"] + "." + handler("books"),
		},
	}
	foreign["/jobs/{id}"] = []string{into[api.Job](t, g.must(t, 201, "POST", "/api/v1/jobs", `{"action": "retry", "filter": {"handler": "books"}}`)).ID}
	unknown := map[string]string{"/jobs/{id}": "999999", "/sources/{name}": "nobody", "/handlers/{name}": "nobody", "/messages/{id}": "999999", "/deliveries/{id}": "999999.1"}
	before := g.rows(t)
	for _, o := range operations(t) {
		if !o.scoped || !strings.Contains(o.path, "{") {
			continue
		}
		body := ""
		if o.method == "POST" || o.method == "PATCH" {
			body = `{}`
		}
		path := strings.TrimPrefix(o.path, "/api/v1")
		kind := path[:strings.Index(path, "}")+1]
		if len(foreign[kind]) == 0 {
			t.Errorf("%s keeps to scopes, and names %s, for which this test has no case", o.id, kind)
		}
		for _, thing := range foreign[kind] {
			ask := func(g *gateway, name string) answer {
				return g.send(t, o.method, "/api/v1"+strings.Replace(path, kind, strings.Replace(kind, kind[strings.Index(kind, "{"):], name, 1), 1)+"?"+o.query, body)
			}
			a := ask(mine, thing)
			problem(t, a, api.ProblemNotFound, o.id+" of "+thing)
			nobody := ask(mine, unknown[kind])
			if got := strings.ReplaceAll(a.text, `\"`+thing+`\"`, `\"`+unknown[kind]+`\"`); got != nobody.text {
				t.Errorf("%s of %s is answered %s, of nobody %s: the difference tells that it is there", o.id, thing, a.text, nobody.text)
			}
		}
	}
	if after := g.rows(t); after != before {
		t.Errorf("something changed: before\n%s\nafter\n%s", before, after)
	}
	if g.changed != 5 || g.ready != 0 {
		t.Errorf("Changed was called %d times, Ready %d", g.changed, g.ready)
	}
	// It is the scope that hid them.
	for kind, things := range foreign {
		for _, thing := range things[:min(len(things), 2)] {
			g.must(t, 200, "GET", "/api/v1"+strings.Replace(kind, kind[strings.Index(kind, "{"):], thing, 1), "")
		}
	}
}

// TestForeignRows reads each list with a token for one tenant: it shows what is theirs, and no trace of others.
func TestForeignRows(t *testing.T) {
	t.Parallel()
	g, mine := twoTenants(t)
	numbers := g.numbers(t)
	lists := map[string][]string{
		"ListSources":  {""},
		"ListHandlers": {""},
		"ListMessages": {
			"", "limit=1", "status=MANUAL_REQUIRED", "status=DONE", "status=UNROUTED", "source=shop", "handler=books", "message_type=charge.paid",
			"from=2020-01-01T00:00:00Z",
		},
		"ListDeliveries": {"", "limit=1", "status=MANUAL_REQUIRED", "status=DONE", "error_class=status", "response_status=500", "response_status=200", "source=shop", "handler=books"},
		"ListAttempts":   {"", "error_class=status", "message=" + numbers["m1"]},
		"ListOutcomes":   {"", "result=DONE", "result=UNROUTED"},
		"LookUp":         {"key=m1", "key=" + url.QueryEscape("order m1"), "key=m2", "key=m3"},
		"ListAudit":      {"", "action=source.create", "object=books"},
		"GetStats":       {""},
		"Tail":           {"since=2020-01-01T00:00:00Z", "since=2020-01-01T00:00:00Z&status=DONE", "since=2020-01-01T00:00:00Z&handler=books", "since=2020-01-01T00:00:00Z&source=shop"},
	}
	mine.must(t, 201, "POST", "/api/v1/jobs", `{"action": "replay", "filter": {"source": "shop", "status": "DONE"}}`)
	g.must(t, 201, "POST", "/api/v1/jobs", `{"action": "replay", "filter": {"source": "foreign-bank", "status": "DISCARDED"}, "reason": "foreign"}`)
	g.must(t, 201, "POST", "/api/v1/jobs", `{"action": "replay", "filter": {"source": "shop", "status": "UNROUTED"}, "to_handler": "foreign-all"}`)
	lists["ListJobs"] = []string{"", "status=running", "limit=1"}
	// With these there is something, all of it foreign.
	hidden := map[string][]string{
		"ListMessages":   {"status=PENDING", "message_id=foreign-1", "biz_key=" + url.QueryEscape("order foreign-1")},
		"ListDeliveries": {"status=PENDING", "message_id=foreign-1"},
		"ListAttempts":   {"message=" + numbers["foreign-1"]},
		"ListOutcomes":   {"message=" + numbers["foreign-2"]},
		"LookUp":         {"key=foreign-1", "key=" + url.QueryEscape("order foreign-2")},
		"ListAudit":      {"object=foreign-vault", "object=foreign-bank", "action=token.create"},
	}
	for _, o := range operations(t) {
		if !o.scoped || o.method != "GET" || strings.Contains(o.path, "{") {
			continue
		}
		if len(lists[o.id]) == 0 {
			t.Errorf("%s keeps to scopes, and this test has no case for it", o.id)
		}
		for _, query := range lists[o.id] {
			a := mine.must(t, 200, "GET", o.path+"?"+query, "")
			if strings.Contains(a.text, "foreign") || !strings.Contains(a.text, "shop") && !strings.Contains(a.text, "books") {
				t.Errorf("%s?%s shows %s, want what is the shop's and nothing else", o.id, query, a.text)
			}
		}
		for _, query := range hidden[o.id] {
			if a := mine.must(t, 200, "GET", o.path+"?"+query, ""); len(into[struct{ Items []any }](t, a).Items) > 0 {
				t.Errorf("%s?%s shows %s", o.id, query, a.text)
			}
			if a := g.must(t, 200, "GET", o.path+"?"+query, ""); len(into[struct{ Items []any }](t, a).Items) == 0 {
				t.Errorf("%s?%s is empty for everybody", o.id, query)
			}
		}
	}
	for _, id := range []string{"m1", "m2", "m3"} {
		for _, path := range []string{"/api/v1/messages/" + numbers[id], "/api/v1/messages/" + numbers[id] + "/timeline"} {
			if a := mine.must(t, 200, "GET", path, ""); strings.Contains(a.text, "foreign") {
				t.Errorf("GET %s of %s shows %s", path, id, a.text)
			}
		}
	}
	// A filter by a foreign name is a typing error, as that of any name that there isn't.
	for _, path := range []string{"/messages?source=foreign-bank", "/messages?handler=foreign-all", "/deliveries?handler=foreign-vault", "/attempts?source=foreign-bank", "/outcomes?handler=foreign-all", "/tail?source=foreign-bank", "/tail?handler=foreign-all"} {
		foreign := mine.refused(t, api.ProblemInvalid, "GET", "/api/v1"+path, "")
		name := path[strings.Index(path, "=")+1:]
		nobody := mine.refused(t, api.ProblemInvalid, "GET", "/api/v1"+strings.Replace(path, name, "nobody", 1), "")
		if strings.ReplaceAll(foreign.Errors[0].Detail, name, "nobody") != nobody.Errors[0].Detail {
			t.Errorf("%s: %q, and %q of nobody", path, foreign.Errors[0].Detail, nobody.Errors[0].Detail)
		}
	}

	stats := into[api.Stats](t, mine.must(t, 200, "GET", "/api/v1/stats?minutes=1", ""))
	if stats.Received.PerMinute != 3 || stats.Ended.PerMinute != 2 || stats.Failed.PerMinute != 1 || stats.Attempts.PerMinute != 2 ||
		stats.Unfinished.Count != 1 || stats.Backlog.ManualRequired.Count != 1 || stats.Backlog.Pending.Count != 0 || len(stats.Handlers) != 1 {
		t.Errorf("the statistics are %+v, want those of 3 messages, of which 1 is parked, 1 done and 1 reached no handler", stats)
	}
	var places []string
	for _, p := range stats.Parking {
		places = append(places, fmt.Sprintf("%s %d", p.Place, p.Count.Count))
	}
	if want := []string{"parked 1", "unrouted 1"}; !slices.Equal(places, want) {
		t.Errorf("the parking places are %q, want %q", places, want)
	}
	// The status is that of what can be seen: m2 is parked at the foreign handler only.
	for id, want := range map[string]api.Status{"m1": "MANUAL_REQUIRED", "m2": "DONE", "m3": "UNROUTED"} {
		if got := into[api.MessageDetail](t, mine.must(t, 200, "GET", "/api/v1/messages/"+numbers[id], "")); got.Message.Status != want {
			t.Errorf("%s is %s to them, want %s", id, got.Message.Status, want)
		}
	}
	// Of the deliveries, the failure and the end of two at the foreign handler are not told.
	if got := mine.must(t, 200, "GET", "/api/v1/tail?since=2020-01-01T00:00:00Z", "").text; strings.Count(got, "event: message") != 3 || strings.Count(got, "event: delivery") != 2 {
		t.Errorf("the tail tells %s, want 3 messages and 2 deliveries", got)
	}
	// Cursors of either go on with the other: what may be seen is looked up for each page.
	page := into[api.MessageList](t, g.must(t, 200, "GET", "/api/v1/messages?limit=1", ""))
	rest := mine.must(t, 200, "GET", "/api/v1/messages?cursor="+*page.Next, "")
	if n := len(into[api.MessageList](t, rest).Items); n != 3 || strings.Contains(rest.text, "foreign") {
		t.Errorf("after everybody's cursor there are %d messages: %s", n, rest.text)
	}
}

// TestScopedAdmin acts within a scope and tries to leave it.
func TestScopedAdmin(t *testing.T) {
	t.Parallel()
	g, mine := twoTenants(t)
	numbers := g.numbers(t)
	for name, refused := range map[string][3]string{
		"a source of another name":        {"POST", "/sources", `{"name": "bank-2", "provider": "none"}`},
		"a source with a variable":        {"POST", "/sources", `{"name": "shop-2", "provider": "stripe", "secrets": ["env:HOME"]}`},
		"a change to a file":              {"PATCH", "/sources/shop", `{"secrets": ["file:/etc/hostname"]}`},
		"a handler with a file":           {"POST", "/handlers", `{"name": "books-2", "url": "https://x.example", "sources": ["shop"], "credentials": {"bearer": "file:/etc/hostname"}}`},
		"a header that is a variable":     {"PATCH", "/handlers/books", `{"credentials": {"headers": [{"name": "X-Key", "value": "env:HOME"}]}}`},
		"a rotation to a variable":        {"POST", "/sources/shop/secrets/rotate", `{"secret": "env:HOME"}`},
		"a handler of another name":       {"POST", "/handlers", `{"name": "mail", "url": "https://x.example", "sources": ["shop"]}`},
		"a handler of everything":         {"POST", "/handlers", `{"name": "books-2", "url": "https://x.example", "sources": ["*"]}`},
		"a handler changed to everything": {"PATCH", "/handlers/books", `{"sources": ["shop", "*"]}`},
		"the statistics of the database":  {"GET", "/system", ""},
		"tokens":                          {"GET", "/tokens", ""},
		"a token for everything":          {"POST", "/tokens", `{"name": "x", "role": "admin"}`},
		"the end of another's token":      {"DELETE", "/tokens/test", ""},
	} {
		if p := mine.refused(t, api.ProblemForbidden, refused[0], "/api/v1"+refused[1], refused[2]); p.Detail == nil || strings.Contains(*p.Detail, "foreign") {
			t.Errorf("%s: the problem is %+v", name, p)
		}
	}
	// A foreign source is none, and so is a handler to replay to.
	if got := fields(mine.refused(t, api.ProblemInvalid, "POST", "/api/v1/handlers", `{"name": "books-2", "url": "https://x.example", "sources": ["shop", "foreign-bank"]}`)); got != "sources[1]" {
		t.Errorf("the fields are %q", got)
	}
	if got := fields(mine.refused(t, api.ProblemInvalid, "POST", "/api/v1/messages/"+numbers["m2"]+"/replay", `{"handlers": ["foreign-all"]}`)); got != "handlers[0]" {
		t.Errorf("the fields are %q", got)
	}
	// Somebody else subscribes one of their handlers to the bank: from then on its URL would lead the bank's messages to them.
	g.must(t, 201, "POST", "/api/v1/handlers", `{"name": "books-all", "url": "https://x.example", "sources": ["shop", "foreign-bank"]}`)
	mine.refused(t, api.ProblemForbidden, "PATCH", "/api/v1/handlers/books-all", `{"url": "https://y.example"}`)
	mine.refused(t, api.ProblemForbidden, "PATCH", "/api/v1/handlers/books-all", `{"url": "https://y.example", "sources": ["shop"]}`)
	mine.refused(t, api.ProblemForbidden, "DELETE", "/api/v1/handlers/books-all", "")
	// Its signing secret proves the bank's messages as well, and a pause would hold them up.
	for _, path := range []string{"/secrets/rotate", "/pause", "/resume"} {
		mine.refused(t, api.ProblemForbidden, "POST", "/api/v1/handlers/books-all"+path, "{}")
	}
	rotated := into[api.RotatedSecret](t, g.must(t, 200, "POST", "/api/v1/handlers/books-all/secrets/rotate", ""))
	mine.refused(t, api.ProblemForbidden, "DELETE", "/api/v1/handlers/books-all/secrets/"+rotated.Items[1].ID, "")
	// So it is for a token that is for some sources, and all handlers.
	wide := g.as(t, inbox.OperatorToken{Name: "wide", Role: inbox.RoleAdmin, Scope: inbox.Scope{Sources: []string{"shop"}, Handlers: []string{"*"}}})
	for _, path := range []string{"/secrets/rotate", "/pause", "/resume"} {
		wide.refused(t, api.ProblemForbidden, "POST", "/api/v1/handlers/foreign-vault"+path, "{}")
		wide.must(t, 200, "POST", "/api/v1/handlers/books"+path, "{}")
	}

	mine.must(t, 201, "POST", "/api/v1/sources", `{"name": "shop-2", "provider": "none"}`)
	mine.must(t, 201, "POST", "/api/v1/handlers", `{"name": "books-2", "url": "https://x.example", "sources": ["shop", "shop-2"]}`)
	mine.must(t, 200, "PATCH", "/api/v1/handlers/books-2", `{"sources": ["shop-2"], "url": "https://y.example"}`)
	mine.must(t, 200, "PATCH", "/api/v1/sources/shop-2", `{"enabled": false}`)
	mine.must(t, 200, "POST", "/api/v1/handlers/books-2/pause", `{}`)
	mine.must(t, 204, "DELETE", "/api/v1/handlers/books-2", "")
	mine.must(t, 204, "DELETE", "/api/v1/sources/shop-2", "")
	if n := len(into[api.AuditList](t, mine.must(t, 200, "GET", "/api/v1/audit?object=books-2", "")).Items); n != 4 {
		t.Errorf("the audit has %d entries of a handler of theirs that is deleted, want 4", n)
	}

	// Without names a replay goes to their own handler only, though the other's delivery has ended too.
	g.run(t, "foreign-all", inbox.VerdictDone)
	parked := into[api.DeliveryList](t, mine.must(t, 200, "GET", "/api/v1/deliveries?status=MANUAL_REQUIRED", "")).Items
	if len(parked) != 1 || parked[0].MessageID != "m1" {
		t.Fatalf("parked are %+v", parked)
	}
	mine.must(t, 200, "POST", "/api/v1/deliveries/"+parked[0].ID+"/done", fmt.Sprintf(`{"claim_seq": %d}`, parked[0].ClaimSeq))
	replayed := into[api.Replayed](t, mine.must(t, 200, "POST", "/api/v1/messages/"+numbers["m1"]+"/replay", ""))
	if len(replayed.Deliveries) != 1 || replayed.Deliveries[0].Handler != "books" {
		t.Errorf("replayed %+v, want to books alone", replayed)
	}
	if list := into[api.DeliveryList](t, g.must(t, 200, "GET", "/api/v1/deliveries?message_id=m1&handler=foreign-all", "")); list.Items[0].ReplayNo != 0 || list.Items[0].Status != "DONE" {
		t.Errorf("the foreign delivery is %+v", list.Items[0])
	}
	// A job reaches no further than whoever made it: not to what is parked at the foreign handler, nor at theirs of the bank.
	g.storeAt(t, "shop", "m4")
	g.storeAt(t, "foreign-bank", "foreign-4")
	for _, name := range []string{"books", "books-all", "foreign-all"} {
		g.run(t, name, inbox.VerdictPermanent)
	}
	retry := `{"action": "retry", "filter": {"all": true}`
	plan := into[api.JobPlan](t, mine.must(t, 200, "POST", "/api/v1/jobs", retry+`, "dry_run": true}`))
	var groups []string
	for _, group := range plan.Groups {
		groups = append(groups, fmt.Sprintf("%s %d", group.Handler, group.Deliveries))
	}
	slices.Sort(groups)
	if want := []string{"books 2", "books-all 1"}; !slices.Equal(groups, want) {
		t.Errorf("the plan is %q, want %q: m1 and m4", groups, want)
	}
	job := into[api.Job](t, mine.must(t, 201, "POST", "/api/v1/jobs", retry+`}`))
	g.runJob(t, job.ID)
	if done := into[api.Job](t, mine.must(t, 200, "GET", "/api/v1/jobs/"+job.ID, "")); done.Status != "done" || done.Moved != 3 {
		t.Errorf("the job is %+v, want 3 moved", done)
	}
	if list := g.must(t, 200, "GET", "/api/v1/deliveries?status=MANUAL_REQUIRED", ""); strings.Contains(list.text, `"handler":"books"`) || strings.Count(list.text, "foreign") < 3 {
		t.Errorf("after the job these are parked: %s", list.text)
	}
	if got := fields(mine.refused(t, api.ProblemInvalid, "POST", "/api/v1/jobs", `{"action": "replay", "filter": {"source": "shop", "status": "UNROUTED"}, "to_handler": "foreign-all"}`)); got != "to_handler" {
		t.Errorf("the fields are %q", got)
	}
	if got := fields(mine.refused(t, api.ProblemInvalid, "POST", "/api/v1/jobs", `{"action": "retry", "filter": {"source": "foreign-bank"}}`)); got != "filter.source" {
		t.Errorf("the fields are %q", got)
	}
	// So doesn't one that replays what reached no handler: foreign-all subscribes to it, too.
	unrouted := `{"action": "replay", "filter": {"source": "shop", "status": "UNROUTED"}`
	if plan := into[api.JobPlan](t, mine.must(t, 200, "POST", "/api/v1/jobs", unrouted+`, "dry_run": true}`)); plan.Deliveries != 2 {
		t.Errorf("the plan is %+v, want m3 to books and books-all", plan)
	}

	// UNROUTED: to those of theirs that subscribe now.
	replayed = into[api.Replayed](t, mine.must(t, 200, "POST", "/api/v1/messages/"+numbers["m3"]+"/replay", ""))
	if got := replayed.Deliveries; len(got) != 2 || !strings.HasPrefix(got[0].Handler, "books") || !strings.HasPrefix(got[1].Handler, "books") {
		t.Errorf("replayed %+v, want to books and books-all", replayed)
	}
}

// runJob runs a job to its end, as the leader does.
func (g *gateway) runJob(t *testing.T, text string) {
	t.Helper()
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		j, err := g.Job(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if j.Status != inbox.JobRunning {
			return
		}
		selection, err := g.SelectForJob(t.Context(), &j, 2)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := g.MoveForJob(t.Context(), &j, inbox.JobPage{Messages: selection.Messages, Cursor: selection.Next}); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatalf("job %s doesn't end", text)
}
