package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/inboxd/inboxd/client"
)

// command runs a command over the instance's API, and fails the test if it ends with another status.
func (i *instance) command(t *testing.T, want int, args ...string) string {
	t.Helper()
	var out, complaints bytes.Buffer
	if status := run(t.Context(), append(args, "--url", i.admin, "--token", i.token), &out, &complaints); status != want {
		t.Fatalf("inboxd %s ended with %d, want %d\n%s%s", strings.Join(args, " "), status, want, out.String(), complaints.String())
	}
	return out.String()
}

// TestCommandsOverTheAPI works as an operator does: a source, a parked delivery, what can be done about it, and
// what scripts see.
func TestCommandsOverTheAPI(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.start(t)
	command := func(want int, args ...string) string {
		t.Helper()
		return i.command(t, want, args...)
	}

	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte(shopSecret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	create := []string{
		"sources", "create", "shop", "--provider", "hmac", "--secret-file", secret, "--settings",
		`{"signature": {"in": "header:X-Signature"}, "message_id": ["{header:X-Id}"], "message_type": ["{header:X-Type}"]}`,
	}
	command(0, create...)
	command(exitConflict, create...)
	command(exitUsage, "sources", "create", "Not A Name", "--provider", "none")
	command(1, "sources", "create", "plain", "--provider", "none", "--secret-ref", "the secret itself")
	command(0, "sources", "change", "shop", "--body-limit", "1000")
	if out := command(0, "sources", "list"); !strings.Contains(out, "shop") || strings.Contains(out, shopSecret) {
		t.Errorf("sources list:\n%s", out)
	}

	down := newDownstream(t, func(w http.ResponseWriter, _ *http.Request, _ []byte) { w.WriteHeader(http.StatusTeapot) })
	registerHandler(t, i, "books", down.URL, map[string]any{"permanent_statuses": []int{http.StatusTeapot}})
	ids := []string{"first", "second", "third"}
	for _, id := range ids {
		if status, _, err := postShop(t.Context(), http.DefaultClient, i.public, id, []byte("{}")); status != http.StatusOK {
			t.Fatalf("%d %v", status, err)
		}
	}
	parked := func(args ...string) []client.Delivery {
		t.Helper()
		var found list[client.Delivery]
		if err := json.Unmarshal([]byte(command(0, append([]string{"parked", "list", "--json"}, args...)...)), &found); err != nil {
			t.Fatal(err)
		}
		return found.Items
	}
	eventually(t, 30*time.Second, "all are parked", func() bool { return len(parked("--all")) == len(ids) })
	if n := len(parked("--limit", "2")); n != 2 {
		t.Errorf("--limit 2 gives %d", n)
	}

	all := parked()
	seq := strconv.FormatInt(all[0].ClaimSeq, 10)
	command(exitConflict, "parked", "discard", all[0].ID, "--claim-seq", strconv.FormatInt(all[0].ClaimSeq+1, 10))
	command(0, "parked", "discard", all[0].ID, "--claim-seq", seq, "--reason", "test")
	command(exitConflict, "parked", "discard", all[0].ID, "--claim-seq", seq)
	command(0, "parked", "done", all[1].ID, "--claim-seq", strconv.FormatInt(all[1].ClaimSeq, 10))
	command(0, "parked", "retry", all[2].ID, "--claim-seq", strconv.FormatInt(all[2].ClaimSeq, 10))
	for range 2 { // a plan leaves it to be planned again, and replayed
		if out := command(0, "replay", all[0].Message, "--dry-run"); !strings.Contains(out, all[0].ID) || !strings.Contains(out, "PENDING") {
			t.Errorf("the plan of a replay:\n%s", out)
		}
	}
	command(0, "replay", all[0].Message, "--to-handler", "books")
	if out := command(0, "messages", "list", "--source", "shop"); strings.Count(out, "shop") != len(ids) {
		t.Errorf("messages list:\n%s", out)
	}
	for _, args := range [][]string{
		{"messages", "get", all[0].Message}, {"deliveries", "get", all[0].ID}, {"deliveries", "list"}, {"lookup", all[0].MessageID},
	} {
		if out := command(0, args...); !strings.Contains(out, all[0].MessageID) {
			t.Errorf("%v:\n%s", args, out)
		}
	}
	if out := command(0, "messages", "timeline", all[0].Message); !strings.Contains(out, "discarded") {
		t.Errorf("timeline:\n%s", out)
	}

	command(exitNotFound, "messages", "get", "999999")
	command(exitUsage, "messages", "list", "--status", "NONE")
	command(0, "sources", "delete", "shop")
	command(exitNotFound, "sources", "get", "shop")
	var out bytes.Buffer
	if status := run(t.Context(), []string{"sources", "list", "--url", i.admin, "--token", "wrong"}, &out, &out); status != exitRefused {
		t.Errorf("a wrong token: %d, want %d", status, exitRefused)
	}
}

func TestForeignTextCantSteerTheTerminal(t *testing.T) {
	t.Parallel()
	for text, want := range map[foreign]string{
		"": "-", "order.paid": "order.paid", "Größe 12, “neu”": "Größe 12, “neu”",
		"\x1b[2Jgone": `"\x1b[2Jgone"`, "a\tb\nc": `"a\tb\nc"`, "a\u202eb": `"a\u202eb"`, `say "hi"`: `"say \"hi\""`, "\xff": `"\xff"`,
	} {
		if got := text.String(); got != want {
			t.Errorf("%q is shown as %s, want %s", string(text), got, want)
		}
	}
}

// TestListsOverPages reads lists of more than one page of the API.
func TestListsOverPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.start(t)
	registerShop(t, i)
	const n = 1203
	w.exec(t, `
INSERT INTO inbox_message (id, received_at, source_id, message_id, message_type, content_type, headers, body)
SELECT nextval('inbox_message_id'), now(), 1, 'm' || i, 'paid', '', '', '' FROM generate_series(1, $1) AS i`, n)
	for _, test := range []struct {
		args []string
		want int
	}{
		{[]string{"--all"}, n},
		{[]string{"--limit", "701"}, 701},
		{[]string{"--limit", "500"}, 500},
		{[]string{"--limit", "5000"}, n},
		{nil, 50},
		{[]string{"--all", "--type", "unpaid"}, 0},
	} {
		var found list[client.Message]
		if err := json.Unmarshal([]byte(i.command(t, 0, append([]string{"messages", "list", "--json"}, test.args...)...)), &found); err != nil {
			t.Fatal(err)
		}
		if len(found.Items) != test.want || found.Items == nil {
			t.Errorf("messages list %q has %d items, want %d", test.args, len(found.Items), test.want)
		}
		for k, m := range found.Items {
			if want := "m" + strconv.Itoa(n-k); m.MessageID != want {
				t.Fatalf("messages list %q has %s as item %d, want %s", test.args, m.MessageID, k, want)
			}
		}
	}
	i.command(t, 1, "messages", "list", "--limit", "0")
}

// TestSecretFromStandardInput gives a source its secret as a script does, where nobody sees it.
func TestSecretFromStandardInput(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.start(t)
	create := func(secret string, args ...string) (string, error) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), os.Args[0], append([]string{"sources", "create", "shop", "--url", i.admin, "--secret-file", "-"}, args...)...)
		cmd.Env = append(os.Environ(), asInboxd+"=1", "INBOXD_TOKEN="+i.token)
		cmd.Stdin = strings.NewReader(secret)
		out, err := cmd.CombinedOutput()
		if len(secret) > 1 && bytes.Contains(out, []byte(strings.TrimSpace(secret))) {
			t.Errorf("the secret is printed: %s", out)
		}
		return string(out), err
	}
	shop := []string{
		"--provider", "hmac", "--settings",
		`{"signature": {"in": "header:X-Signature"}, "message_id": ["{header:X-Id}"], "message_type": ["{header:X-Type}"]}`,
	}
	for _, bad := range []string{"", "\n", strings.Repeat("x", maxSecretFile+1)} {
		if out, err := create(bad, shop...); err == nil || !strings.Contains(out, "the secret in - is empty or longer") {
			t.Errorf("a secret of %d bytes: %v %s", len(bad), err, out)
		}
	}
	if out, err := create(shopSecret+"\n", shop...); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	i.post(t, "signed with it")
}
