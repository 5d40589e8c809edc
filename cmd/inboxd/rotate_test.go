package main

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/inboxd/inboxd/client"
)

// TestSecretCommands rotates secrets and gives a handler credentials, as an operator at a terminal does.
func TestSecretCommands(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.start(t)
	registerShop(t, i)
	handler := newDownstream(t, func(w http.ResponseWriter, r *http.Request, _ []byte) {
		if r.Header.Get("Authorization") != "Bearer from-a-file" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	})
	file := func(text string) string {
		t.Helper()
		name := filepath.Join(t.TempDir(), "input")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	ids := func(args ...string) []client.Secret {
		t.Helper()
		var found client.SecretList
		if err := json.Unmarshal([]byte(i.command(t, 0, append(args, "--json")...)), &found); err != nil {
			t.Fatal(err)
		}
		return found.Items
	}
	first := ids("sources", "secrets", "list", "shop")[0]
	i.command(t, exitConflict, "sources", "secrets", "retire", "shop", first.ID)
	i.command(t, 1, "sources", "secrets", "add", "shop")
	i.command(t, 0, "sources", "secrets", "add", "shop", "--secret-file", file("another one\n"), "--reason", "two endpoints")
	rotated := ids("sources", "secrets", "rotate", "shop", "--secret-file", file("the next one"), "--overlap", "2h")
	if len(rotated) != 3 || rotated[0].NotAfter != nil || rotated[1].NotAfter == nil || rotated[1].ID != first.ID {
		t.Errorf("rotated to %+v", rotated)
	}
	i.command(t, 0, "sources", "secrets", "retire", "shop", first.ID)
	i.command(t, exitNotFound, "sources", "secrets", "retire", "shop", first.ID)
	if out := i.command(t, 0, "sources", "secrets", "list", "shop"); strings.Contains(out, first.ID) || !strings.Contains(out, rotated[0].ID) || strings.Contains(out, "next one") {
		t.Errorf("sources secrets list:\n%s", out)
	}

	i.command(t, 0, "handlers", "create", "books", "--to", handler.URL, "--source", "*", "--credentials-file", file(`{"bearer": "from-a-file"}`))
	i.command(t, 0, "handlers", "ping", "books")
	out := i.command(t, 0, "handlers", "secrets", "rotate", "books")
	if !strings.Contains(out, "shown this once: whsec_") {
		t.Errorf("handlers secrets rotate:\n%s", out)
	}
	signing := ids("handlers", "secrets", "list", "books")
	i.command(t, 0, "handlers", "secrets", "retire", "books", signing[1].ID)
	if left := ids("handlers", "secrets", "list", "books"); len(signing) != 2 || len(left) != 1 || left[0].ID != signing[0].ID {
		t.Errorf("of %+v there are left %+v", signing, left)
	}
	i.command(t, exitUsage, "handlers", "change", "books", "--to", handler.URL+"/moved")
	i.command(t, 1, "handlers", "change", "books", "--credentials-file", file(`{"bearer": "x", "colour": 1}`))
	i.command(t, 0, "handlers", "change", "books", "--to", handler.URL+"/moved", "--credentials-file", file("{}"))
	i.command(t, 1, "handlers", "ping", "books")
}
