package api_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/inboxd/inboxd/api"
	"github.com/inboxd/inboxd/inbox"
)

func TestJobs(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.must(t, 201, "POST", "/api/v1/sources", stripeSource)
	g.must(t, 201, "POST", "/api/v1/handlers", hookHandler)
	g.store(t, "first", "second", "third")
	g.run(t, "books", inbox.VerdictPermanent)

	const body = `{"action": "retry", "filter": {"handler": "books", "response_status": 500}, "pace": 7, "reason": "mended", "note": "ticket 8"`
	plan := into[api.JobPlan](t, g.must(t, 200, "POST", "/api/v1/jobs", body+`, "dry_run": true}`))
	if plan.Deliveries != 3 || plan.AtLeast != nil || len(plan.Groups) != 1 || plan.Groups[0] != (api.JobGroup{Handler: "books", MessageType: "charge.paid", Deliveries: 3}) {
		t.Errorf("the plan is %+v", plan)
	}
	if list := into[api.JobList](t, g.must(t, 200, "GET", "/api/v1/jobs", "")); len(list.Items) != 0 || list.Items == nil {
		t.Errorf("after a dry run there are %+v", list)
	}
	job := into[api.Job](t, g.must(t, 201, "POST", "/api/v1/jobs", body+`}`))
	if job.Status != api.JobRunning || job.By != "test" || *job.Reason != "mended" || *job.Note != "ticket 8" || job.Pace != 7 || *job.Filter.Handler != "books" ||
		*job.Filter.Status != "MANUAL_REQUIRED" || *job.Filter.ResponseStatus != 500 || job.Filter.All != nil || job.Progress != 0 || job.CreatedAt.IsZero() {
		t.Errorf("created %+v", job)
	}
	all := into[api.Job](t, g.must(t, 201, "POST", "/api/v1/jobs", `{"action": "replay", "filter": {"all": true, "status": "DONE"}, "to_handler": "books"}`))
	if all.Filter.All == nil || !*all.Filter.All || *all.ToHandler != "books" || *all.Filter.Status != "DONE" {
		t.Errorf("created %+v", all)
	}
	if got := into[api.Job](t, g.must(t, 200, "GET", "/api/v1/jobs/"+job.ID, "")); got.ID != job.ID || *got.Filter.Handler != "books" || got.Action != "retry" {
		t.Errorf("read %+v", got)
	}
	cancelled := into[api.Job](t, g.must(t, 200, "POST", "/api/v1/jobs/"+job.ID+"/cancel", `{"reason": "no"}`))
	if cancelled.Status != api.JobCancelled || cancelled.FinishedAt == nil || cancelled.Moved != 0 {
		t.Errorf("cancelled %+v", cancelled)
	}
	if p := g.refused(t, api.ProblemConflict, "POST", "/api/v1/jobs/"+job.ID+"/cancel", ""); p.Detail == nil || !strings.Contains(*p.Detail, "cancelled") {
		t.Errorf("the problem is %+v", p)
	}
	audit := into[api.AuditList](t, g.must(t, 200, "GET", "/api/v1/audit?action=job.cancel", ""))
	if len(audit.Items) != 1 || *audit.Items[0].Job != job.ID || audit.Items[0].Object != job.ID || *audit.Items[0].Reason != "no" {
		t.Errorf("the audit is %+v", audit)
	}

	page := into[api.JobList](t, g.must(t, 200, "GET", "/api/v1/jobs?limit=1", ""))
	if len(page.Items) != 1 || page.Items[0].ID != all.ID || page.Next == nil {
		t.Fatalf("the first page is %+v", page)
	}
	next := into[api.JobList](t, g.must(t, 200, "GET", "/api/v1/jobs?limit=1&cursor="+*page.Next, ""))
	if len(next.Items) != 1 || next.Items[0].ID != job.ID || next.Next != nil {
		t.Errorf("the second page is %+v", next)
	}
	g.refused(t, api.ProblemBadRequest, "GET", "/api/v1/jobs?status=running&cursor="+*page.Next, "")
	if list := into[api.JobList](t, g.must(t, 200, "GET", "/api/v1/jobs?status=running", "")); len(list.Items) != 1 || list.Items[0].ID != all.ID {
		t.Errorf("the running ones are %+v", list)
	}
	for _, id := range []string{"99", "0", "-1", "x", "01"} {
		g.refused(t, api.ProblemNotFound, "GET", "/api/v1/jobs/"+id, "")
		g.refused(t, api.ProblemNotFound, "POST", "/api/v1/jobs/"+id+"/cancel", "")
	}
}

// TestJobsRefused: what is left out, empty or misspelt must never choose everything.
func TestJobsRefused(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.must(t, 201, "POST", "/api/v1/sources", stripeSource)
	g.must(t, 201, "POST", "/api/v1/handlers", hookHandler)
	g.must(t, 201, "POST", "/api/v1/handlers", strings.Replace(hookHandler, "books", "mail", 1))
	for _, test := range []struct {
		body, field string
		kind        api.ProblemType
	}{
		{`{}`, "action", api.ProblemInvalid},
		{`{"action": "retry"}`, "filter", api.ProblemInvalid},
		{`{"action": "retry", "filter": {}}`, "filter", api.ProblemInvalid},
		{`{"action": "retry", "filter": null}`, "filter", api.ProblemBadRequest},
		{`{"action": "retry", "filter": {"all": false}}`, "filter", api.ProblemInvalid},
		{`{"action": "retry", "filter": {"status": "MANUAL_REQUIRED"}}`, "filter", api.ProblemInvalid},
		{`{"action": "replay", "filter": {"status": "DONE"}}`, "filter", api.ProblemInvalid},
		{`{"action": "retry", "filter": {"all": true, "handler": "books"}}`, "filter.all", api.ProblemInvalid},
		{`{"action": "retry", "filter": {"handlr": "books"}}`, "filter.handlr", api.ProblemBadRequest},
		{`{"action": "retry", "filter": {"handler": "books", "Source": "shop"}}`, "filter.Source", api.ProblemBadRequest},
		{`{"action": "retry", "filter": {"handler": "books"}, "dryrun": true}`, "dryrun", api.ProblemBadRequest},
		{`{"action": "retry", "filter": {"handler": ""}}`, "filter.handler", api.ProblemInvalid},
		{`{"action": "retry", "filter": {"handler": "books", "source": ""}}`, "filter.source", api.ProblemInvalid},
		{`{"action": "retry", "filter": {"handler": "books", "source": null}}`, "filter.source", api.ProblemBadRequest},
		{`{"action": "retry", "filter": {"biz_key": "", "handler": "books"}}`, "filter.biz_key", api.ProblemInvalid},
		{`{"action": "retry", "filter": {"ordering_key": ""}}`, "filter.ordering_key", api.ProblemInvalid},
		{`{"action": "retry", "filter": {"message_id": ""}}`, "filter.message_id", api.ProblemInvalid},
		{`{"action": "retry", "filter": {"message_type": ""}}`, "filter.message_type", api.ProblemInvalid},
		{`{"action": "retry", "filter": {"error_class": ""}}`, "filter.error_class", api.ProblemInvalid},
		{`{"action": "retry", "filter": {"response_status": 0}}`, "filter.response_status", api.ProblemInvalid},
		{`{"action": "retry", "filter": {"handler": 7}}`, "filter.handler", api.ProblemBadRequest},
		{`{"action": "retry", "filter": ["books"]}`, "filter", api.ProblemBadRequest},
		{`{"action": "retry", "filter": {"handler": "nobody"}}`, "filter.handler", api.ProblemInvalid},
		{`{"action": "retry", "filter": {"source": "nobody"}}`, "filter.source", api.ProblemInvalid},
		{`{"action": "retry", "filter": {"from": "2026-01-02T00:00:00Z", "to": "2026-01-01T00:00:00Z"}}`, "filter.to", api.ProblemInvalid},
		{`{"action": "retry", "filter": {"from": "0001-01-01T00:00:00Z"}}`, "filter.from", api.ProblemBadRequest},
		{`{"action": "retry", "filter": {"to": "0001-01-01T00:00:00Z"}}`, "filter.to", api.ProblemBadRequest},
		{`{"action": "retry", "filter": {"from": "0000-01-01T00:00:00+12:00"}}`, "filter.from", api.ProblemBadRequest},
		{`{"action": "retry", "filter": {"from": "9999-12-31T23:59:59-12:00"}}`, "filter.from", api.ProblemBadRequest},
		{`{"action": "retry", "filter": {"handler": "books", "status": "DONE"}}`, "filter.status", api.ProblemInvalid},
		{`{"action": "retry", "filter": {"handler": "books"}, "to_handler": "mail"}`, "to_handler", api.ProblemInvalid},
		{`{"action": "retry", "filter": {"handler": "books"}, "pace": -1}`, "pace", api.ProblemInvalid},
		{`{"action": "delete", "filter": {"handler": "books"}}`, "action", api.ProblemInvalid},
		{`{"action": "replay", "filter": {"handler": "books"}}`, "filter.status", api.ProblemInvalid},
		{`{"action": "replay", "filter": {"handler": "books", "status": "MANUAL_REQUIRED"}}`, "filter.status", api.ProblemInvalid},
		{`{"action": "replay", "filter": {"handler": "books", "status": "UNROUTED"}}`, "filter.handler", api.ProblemInvalid},
		{`{"action": "replay", "filter": {"handler": "books", "status": "DONE"}, "to_handler": "mail"}`, "to_handler", api.ProblemInvalid},
		{`{"action": "replay", "filter": {"source": "shop", "status": "DONE"}, "to_handler": "nobody"}`, "to_handler", api.ProblemInvalid},
		{`{"action": "replay", "filter": {"source": "shop", "status": "DONE"}, "to_handler": ""}`, "to_handler", api.ProblemInvalid},
	} {
		if p := g.refused(t, test.kind, "POST", "/api/v1/jobs", test.body); fields(p) != test.field {
			t.Errorf("%s: the fields are %q, want %q", test.body, fields(p), test.field)
		}
	}
	for _, class := range []inbox.Class{
		inbox.ClassStatus, inbox.ClassTimeout, inbox.ClassConnection, inbox.ClassTLS, inbox.ClassRefused, inbox.ClassRedirect, inbox.ClassRequest,
		inbox.ClassToken, inbox.ClassLeaseExpired,
	} {
		g.must(t, 200, "POST", "/api/v1/jobs", `{"action": "retry", "filter": {"error_class": "`+string(class)+`"}, "dry_run": true}`)
		g.must(t, 200, "GET", "/api/v1/deliveries?error_class="+string(class), "")
	}
	if list := into[api.JobList](t, g.must(t, 200, "GET", "/api/v1/jobs", "")); len(list.Items) != 0 {
		t.Errorf("a refused job was made: %+v", list)
	}
}

// TestTooManyJobs: the leader goes round a bounded number.
func TestTooManyJobs(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	const body = `{"action": "retry", "filter": {"all": true}}`
	mine := g.as(t, inbox.OperatorToken{Name: "mine", Role: inbox.RoleOperate, Scope: inbox.Scope{Sources: []string{"shop"}, Handlers: []string{"*"}}})
	for range 10 { // one tenant leaves some to the others
		mine.must(t, 201, "POST", "/api/v1/jobs", body)
	}
	mine.refused(t, api.ProblemConflict, "POST", "/api/v1/jobs", body)
	var last api.Job
	for range 90 {
		last = into[api.Job](t, g.must(t, 201, "POST", "/api/v1/jobs", body))
	}
	g.refused(t, api.ProblemConflict, "POST", "/api/v1/jobs", body)
	g.must(t, 200, "POST", fmt.Sprintf("/api/v1/jobs/%s/cancel", last.ID), "")
	g.must(t, 201, "POST", "/api/v1/jobs", body)
}
