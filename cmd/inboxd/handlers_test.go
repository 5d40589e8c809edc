package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/inboxd/inboxd/client"
)

// TestHandlerCommands registers, changes, pauses, pings and deletes a handler by command, and finds all of it in the audit.
func TestHandlerCommands(t *testing.T) {
	t.Parallel()
	i := newWorld(t).start(t)
	status := http.StatusOK
	down := newDownstream(t, func(w http.ResponseWriter, _ *http.Request, _ []byte) { w.WriteHeader(status) })
	show := func(args ...string) client.HandlerView {
		t.Helper()
		var h client.HandlerView
		if err := json.Unmarshal([]byte(i.command(t, 0, append([]string{"handlers"}, append(args, "--json")...)...)), &h); err != nil {
			t.Fatal(err)
		}
		return h
	}

	create := []string{"handlers", "create", "books", "--to", down.URL, "--source", "*", "--type", "order.*,refund", "--permanent-status", "410"}
	secret := strings.TrimSpace(i.command(t, 0, create...))
	if secret = secret[strings.LastIndex(secret, " ")+1:]; !strings.HasPrefix(secret, "whsec_") {
		t.Errorf("handlers create shows no secret but %q", secret)
	}
	i.command(t, exitConflict, create...)
	i.command(t, exitUsage, "handlers", "create", "other", "--to", "http://169.254.169.254/", "--source", "*")
	if h := show("get", "books"); len(h.MessageTypes) != 2 || h.PermanentStatuses[0] != 410 || h.Paused {
		t.Errorf("handlers get = %+v", h)
	}
	if h := show("update", "books", "--timeout", "7s"); h.Timeout != "7s" || h.URL != down.URL || len(h.MessageTypes) != 2 {
		t.Errorf("handlers update = %+v", h)
	}
	i.command(t, exitUsage, "handlers", "change", "books", "--timeout", "soon")
	if h := show("pause", "books", "--reason", "night call"); !h.Paused {
		t.Errorf("handlers pause = %+v", h)
	}
	if h := show("resume", "books"); h.Paused {
		t.Errorf("handlers resume = %+v", h)
	}
	if out := i.command(t, 0, "handlers", "ping", "books"); !strings.Contains(out, "answered 200") {
		t.Errorf("handlers ping:\n%s", out)
	}
	status = http.StatusTeapot
	if out := i.command(t, 1, "handlers", "ping", "books"); !strings.Contains(out, "answered 418") {
		t.Errorf("handlers ping:\n%s", out)
	}
	if out := i.command(t, 0, "handlers", "list"); !strings.Contains(out, "books") || strings.Contains(out, secret) {
		t.Errorf("handlers list:\n%s", out)
	}
	i.command(t, 0, "handlers", "delete", "books")
	i.command(t, exitNotFound, "handlers", "get", "books")

	var audit list[client.AuditEntry]
	if err := json.Unmarshal([]byte(i.command(t, 0, "audit", "--object", "books", "--json")), &audit); err != nil {
		t.Fatal(err)
	}
	if len(audit.Items) != 5 || audit.Items[0].Action != "handler.delete" {
		t.Errorf("audit = %+v", audit.Items)
	}
	if out := i.command(t, 0, "audit"); !strings.Contains(out, "night call") || strings.Contains(out, secret) {
		t.Errorf("audit:\n%s", out)
	}
}

// TestStatsAndSystemCommands reads what is parked, and who leads.
func TestStatsAndSystemCommands(t *testing.T) {
	t.Parallel()
	i := newWorld(t).start(t)
	i.command(t, 0, "sources", "create", "shop", "--provider", "none", "--no-enabled", "--settings",
		`{"message_id": ["{header:X-Id}"], "message_type": ["{header:X-Type}"]}`)
	if out := i.command(t, 0, "stats"); !strings.Contains(out, "source_disabled") {
		t.Errorf("stats:\n%s", out)
	}
	i.command(t, exitUsage, "stats", "--minutes", "0")
	if out := i.command(t, 0, "system"); !strings.Contains(out, "inbox_message") {
		t.Errorf("system:\n%s", out)
	}
	for _, name := range []string{"stats", "system"} {
		if out := i.command(t, 0, name, "--json"); !json.Valid([]byte(out)) {
			t.Errorf("%s --json:\n%s", name, out)
		}
	}
}

// TestOnlySettingsFromEnvironment sets variables that could be taken for filters: only the URL and the token count.
func TestOnlySettingsFromEnvironment(t *testing.T) {
	i := newWorld(t).start(t)
	i.command(t, 0, "handlers", "create", "books", "--to", "http://127.0.0.1:9/", "--source", "*")
	for name, value := range map[string]string{
		"URL": i.admin, "TOKEN": i.token, "ACTOR": "nobody", "OBJECT": "nothing", "MESSAGE": "1", "FROM": "2100-01-01T00:00:00Z", "LIMIT": "0", "JSON": "true",
	} {
		t.Setenv("INBOXD_"+name, value)
	}
	var out bytes.Buffer
	if status := run(t.Context(), []string{"audit"}, &out, &out); status != 0 || !strings.Contains(out.String(), "handler.create") || strings.Contains(out.String(), "{") {
		t.Errorf("audit ended with %d:\n%s", status, out.String())
	}
}
