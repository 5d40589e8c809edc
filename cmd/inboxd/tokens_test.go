package main

import (
	"bytes"
	"net/http"
	"strings"
	"testing"
)

// TestTokensCommand makes tokens of each kind on the database, sees them listed, and tries them.
func TestTokensCommand(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.start(t)
	command := func(want int, args ...string) string {
		t.Helper()
		var out, complaints bytes.Buffer
		if status := run(t.Context(), append(append([]string{"tokens"}, args...), "--database-url", w.url), &out, &complaints); status != want {
			t.Fatalf("inboxd tokens %s ended with %d, want %d\n%s%s", strings.Join(args, " "), status, want, out.String(), complaints.String())
		}
		return strings.TrimSpace(out.String())
	}
	status := func(method, path, token string) int {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), method, i.admin+"/api/v1"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+token)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		return response.StatusCode
	}

	plain := command(0, "create", "plain") // reads, and no more
	admin := command(0, "create", "boss", "--role", "admin", "--expires", "90d")
	command(0, "create", "some", "--role", "operate", "--source", "shop-*", "--source", "bank", "--handler", "books")
	if got := []int{status("GET", "/sources", plain), status("POST", "/handlers/x/pause", plain), status("GET", "/tokens", plain), status("GET", "/tokens", admin)}; got[0] != 200 || got[1] != 403 || got[2] != 403 || got[3] != 200 {
		t.Errorf("the tokens were answered %v, want 200 403 403 200", got)
	}
	for _, wrong := range [][]string{
		{"create", "x", "--expires", "yesterday"},
		{"create", "x", "--expires=-1h"},
		{"create", "x", "--expires", "2020-01-01T00:00:00Z"},
		{"create", "x", "--source", "[bad"},
	} {
		command(1, wrong...)
	}
	command(2, "create", "x", "--role", "root")

	command(0, "revoke", "plain")
	if got := status("GET", "/sources", plain); got != http.StatusUnauthorized {
		t.Errorf("a revoked token was answered %d", got)
	}
	list := command(0, "list")
	for name, want := range map[string][]string{
		"plain": {"read", "revoked"}, "boss": {"admin", "until 20"},
		"some": {"operate", "shop-* bank", "books", "valid"}, "test": {"admin", "valid"},
	} {
		line := ""
		for l := range strings.Lines(list) {
			if strings.HasPrefix(l, name+" ") {
				line = l
			}
		}
		for _, part := range want {
			if !strings.Contains(line, part) {
				t.Errorf("tokens list says of %s %q, want %q", name, line, part)
			}
		}
	}
	if strings.Contains(list, "inboxd_") {
		t.Errorf("the list has a token's text:\n%s", list)
	}
}
