package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"
)

// TestSecretsStayWhereTheyBelong plants secrets wherever there are some, makes traffic and failures, and
// looks for each of them in everything that can be read.
func TestSecretsStayWhereTheyBelong(t *testing.T) { // [F7]
	t.Parallel()
	const (
		authorization = "plant-authorization-7d1f"
		cookie        = "plant-cookie-93ab"
		apiKey        = "plant-api-key-5c0e"
		newSecret     = "plant-source-secret-1b7a"
		addedSecret   = "plant-added-secret-4f02"
		refusedSecret = "sealed:plant-refused-secret-88e2"
	)
	w := newWorld(t)
	database, err := url.Parse(w.url)
	if err != nil {
		t.Fatal(err)
	}
	password, given := database.User.Password()
	if !given {
		password = "plant-database-password-62c8" // which the private server doesn't ask for
		database.User = url.UserPassword(database.User.Username(), password)
	}
	var log lockedBuffer
	i := w.start(t, func(c *gatewayConfig) {
		c.Log = zerolog.New(&log).Level(zerolog.DebugLevel)
		c.DatabaseURL = database.String()
	})
	handler := newDownstream(t, func(rw http.ResponseWriter, _ *http.Request, _ []byte) {
		rw.WriteHeader(http.StatusInternalServerError)
	})
	i.call(t, http.MethodPost, "/sources", map[string]any{
		"name": "shop", "provider": "hmac", "secrets": []string{shopSecret},
		"settings": map[string]any{
			"signature":    map[string]any{"in": "header:X-Proof"}, // no name that gives it away
			"message_id":   []string{"{header:X-Id}"},
			"message_type": []string{"{header:X-Type}"},
		},
	}, nil)
	var made struct{ Secret string }
	i.call(t, http.MethodPost, "/handlers", map[string]any{
		"name": "books", "url": handler.URL, "sources": []string{"*"}, "max_retry_count": 0,
	}, &made)
	if made.Secret == "" {
		t.Fatal("the new handler's secret is not shown")
	}

	shown := newGuarded(t)
	credentials, key := shown.credentials(t)
	for name, c := range credentials {
		registerHandler(t, i, name, shown.URL+"/"+name, map[string]any{"credentials": c, "max_retry_count": 0})
	}

	var answers bytes.Buffer
	exchange := func(request *http.Request) int {
		t.Helper()
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		fmt.Fprintln(&answers, request.Method, request.URL.Path, response.Status, response.Header)
		if _, err := io.Copy(&answers, response.Body); err != nil {
			t.Fatal(err)
		}
		return response.StatusCode
	}
	operate := func(method, path, body string) int {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), method, i.admin+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+w.token)
		request.Header.Set("Content-Type", "application/json")
		return exchange(request)
	}
	signed := shopRequest(t.Context(), i.public, "m1", []byte(`{}`))
	signature := signed.Header.Get("X-Signature")
	signed.Header.Del("X-Signature")
	signed.Header.Set("X-Proof", signature)
	signed.Header.Set("Authorization", "Bearer "+authorization)
	signed.Header.Set("Cookie", "session="+cookie)
	signed.Header.Set("X-Api-Key", apiKey)
	if status := exchange(signed); status != http.StatusOK {
		t.Fatalf("the webhook was answered %d", status)
	}
	forged := shopRequest(t.Context(), i.public, "m2", []byte(`{}`))
	forged.Header.Set("X-Proof", strings.Repeat("0", 64))
	forged.Header.Set("Authorization", "Bearer "+authorization)
	if status := exchange(forged); status != http.StatusUnauthorized {
		t.Fatalf("the forged webhook was answered %d", status)
	}
	eventually(t, 10*time.Second, "the deliveries are parked", func() bool {
		return w.count(t, `SELECT count(*) FROM delivery WHERE status = 'MANUAL_REQUIRED'`) == 1+len(credentials)
	})
	for _, name := range []string{"bearer", "basic", "oauth2", "tls"} {
		operate(http.MethodPost, "/api/v1/handlers/"+name+"/ping", "")
		operate(http.MethodPatch, "/api/v1/handlers/"+name, `{"url": "https://elsewhere.example"}`)
		operate(http.MethodGet, "/api/v1/handlers/"+name, "")
		operate(http.MethodGet, "/api/v1/deliveries/"+fmt.Sprint(w.count(t, `SELECT id::int FROM inbox_message`))+"."+fmt.Sprint(w.count(t, `SELECT id::int FROM handler WHERE name = $1`, name)), "")
		operate(http.MethodPatch, "/api/v1/handlers/books", `{"credentials": {"bearer": "`+planted["a bearer token"]+`", "basic": {"username": "a:b", "password": "`+planted["a basic password"]+`"}}}`)
	}
	if answered := answers.String(); !strings.Contains(answered, "I broke on Bearer ***") || !strings.Contains(answered, "I broke on Basic ***") {
		t.Error("the answers of handlers are not kept, or not masked")
	}
	id := fmt.Sprint(w.count(t, `SELECT id::int FROM inbox_message`))
	operate(http.MethodPatch, "/api/v1/sources/shop", `{"secrets": ["`+newSecret+`"]}`)
	if status := operate(http.MethodPatch, "/api/v1/sources/shop", `{"secrets": ["`+refusedSecret+`"]}`); status != http.StatusUnprocessableEntity {
		t.Errorf("a secret that begins with sealed: was answered %d", status)
	}
	operate(http.MethodPost, "/api/v1/sources", `{"name": "bad", "provider": "standard-webhooks", "secrets": ["`+newSecret+`"]}`)
	operate(http.MethodPost, "/api/v1/sources", `{"name": "shop", "provider": "stripe", "secrets": ["`+newSecret+`"], "unknown": 1}`)
	if status := operate(http.MethodPost, "/api/v1/sources/shop/secrets", `{"secret": "`+addedSecret+`"}`); status != http.StatusCreated {
		t.Errorf("a secret was added with %d", status)
	}
	operate(http.MethodPost, "/api/v1/sources/shop/secrets", `{"secret": "`+addedSecret+`"}`)
	operate(http.MethodPost, "/api/v1/sources/shop/secrets/rotate", `{"secret": "`+addedSecret+`", "overlap": "1h"}`)
	operate(http.MethodPost, "/api/v1/sources/shop/secrets/rotate", `{"secret": "`+refusedSecret+`"}`)
	for _, path := range []string{
		"/api/v1/sources", "/api/v1/sources/shop", "/api/v1/sources/shop/secrets", "/api/v1/handlers/books/secrets", "/api/v1/audit",
		"/api/v1/system", "/api/v1/stats", "/api/v1/attempts", "/api/v1/messages/" + id + "/timeline", "/api/v1/handlers", "/api/v1/handlers/books", "/api/v1/messages",
		"/api/v1/messages/" + id, "/api/v1/deliveries", "/metrics", "/readyz", "/nowhere",
	} {
		operate(http.MethodGet, path, "")
	}

	operate(http.MethodDelete, "/api/v1/sources/shop", "") // the deleted source still says which header it was
	operate(http.MethodGet, "/api/v1/messages/"+id, "")

	// What the program says of a database that it can't reach, or whose URL it can't read.
	var said lockedBuffer
	away := *database
	away.Host, away.RawQuery = "127.0.0.1:1", "connect_timeout=2"
	for _, address := range []string{away.String(), strings.Replace(database.String(), "postgres://", "postgres//", 1)} {
		for _, args := range [][]string{{"migrate", "status"}, {"tokens", "list"}, {"check"}} {
			if status := run(t.Context(), append(args, "--database-url", address), &said, &said); status == 0 {
				t.Errorf("%v succeeded without a database", args)
			}
		}
	}

	places := map[string]string{"the commands": said.String(), "the answers": answers.String(), "the log": log.String(), "the rows": w.dump(t)}
	if !strings.Contains(places["the rows"], "sealed:v1:test:") || !strings.Contains(places["the answers"], `"X-Type"`) {
		t.Fatal("the places looked at don't hold what they should")
	}
	for name, secret := range planted {
		for place, text := range places {
			if strings.Contains(text, secret) {
				t.Errorf("%s has %s", place, name)
			}
		}
	}
	for name, secret := range map[string]string{
		"the client certificate's key": keyLine(key), "the basic Authorization": base64.StdEncoding.EncodeToString([]byte("me:" + planted["a basic password"])),
		"the source's added secret": addedSecret, "the database's password": password,
		"the source's secret": newSecret, "the source's former secret": shopSecret, "a refused secret": refusedSecret,
		"the handler's secret": made.Secret, "Authorization": authorization, "the cookie": cookie, "the API key": apiKey,
		"the token": w.token, "the sealing key": testKeys,
	} {
		for place, text := range places {
			if strings.Contains(text, secret) {
				t.Errorf("%s has %s", place, name)
			}
		}
	}
	// The signature is stored: the handler gets it, to verify the message itself. It isn't shown.
	for _, place := range []string{"the answers", "the log", "the commands"} {
		if strings.Contains(places[place], signature) {
			t.Errorf("%s has the webhook's signature", place)
		}
	}
}

// dump returns every row of every table as text, bytes as what they say.
func (w *world) dump(t *testing.T) string {
	t.Helper()
	rows, _ := w.pool.Query(t.Context(), `SELECT quote_ident(tablename) FROM pg_tables WHERE schemaname = 'public'`)
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, table := range append(tables, `(SELECT encode(headers, 'escape'), encode(body, 'escape') FROM inbox_message)`) {
		rows, _ := w.pool.Query(t.Context(), `SELECT t::text FROM `+table+` AS t`)
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatalf("%s: %v", table, err)
		}
		fmt.Fprintln(&text, table, strings.Join(lines, "\n"))
	}
	return text.String()
}

func TestFileSecretIsFollowed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.start(t)
	path := filepath.Join(t.TempDir(), "secret")
	write := func(text string) {
		t.Helper()
		// As Kubernetes does it: the whole file at once.
		if err := os.WriteFile(path+".new", []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	source := map[string]any{
		"name": "shop", "provider": "hmac", "secrets": []string{"file:" + path},
		"settings": map[string]any{
			"signature": map[string]any{"in": "header:X-Signature"}, "message_id": []string{"{header:X-Id}"},
		},
	}
	call := operators{url: i.admin, token: i.token}
	if status, err := call.call(t.Context(), http.MethodPost, "/sources", source, nil); status != http.StatusUnprocessableEntity || !strings.Contains(err.Error(), "file:"+path) {
		t.Fatalf("a source whose file is missing was answered %d, %v", status, err)
	}
	write(shopSecret)
	i.call(t, http.MethodPost, "/sources", source, nil)
	status := func() int {
		got, _, err := postShop(t.Context(), http.DefaultClient, i.public, "m1", []byte("{}"))
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := status(); got != http.StatusOK {
		t.Fatalf("answered %d", got)
	}
	write("another secret")
	eventually(t, time.Second, "the changed file", func() bool { return status() == http.StatusUnauthorized })
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Second, "the missing file", func() bool { return status() == http.StatusServiceUnavailable })
	var shown struct {
		SecretError string `json:"secret_error"`
	}
	i.call(t, http.MethodGet, "/sources/shop", nil, &shown)
	if !strings.Contains(shown.SecretError, "file:"+path) {
		t.Errorf("secret_error is %q", shown.SecretError)
	}
	write(shopSecret)
	eventually(t, time.Second, "the file that is back", func() bool { return status() == http.StatusOK })
}

func TestWithoutKeysSecretsAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.start(t, func(c *gatewayConfig) { c.Settings.SecretKeys = "" })
	status, err := operators{url: i.admin, token: i.token}.call(t.Context(), http.MethodPost, "/handlers",
		map[string]any{"name": "books", "url": "http://127.0.0.1:1", "sources": []string{"*"}}, nil)
	if status != http.StatusUnprocessableEntity || !strings.Contains(err.Error(), "inboxd secrets key") {
		t.Errorf("answered %d, %v", status, err)
	}
}

func TestRekeyUnderTraffic(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	output := func(args ...string) string {
		t.Helper()
		var out bytes.Buffer
		if status := run(context.Background(), args, &out, &out); status != 0 {
			t.Fatalf("inboxd %v ended with %d: %s", args[:2], status, out.String())
		}
		return strings.TrimSpace(out.String())
	}
	keys := output("secrets", "key", "--id", "new") + "," + testKeys
	i := w.start(t, func(c *gatewayConfig) { c.Settings.SecretKeys = testKeys + "," + strings.SplitN(keys, ",", 2)[0] })
	registerShop(t, i)
	l := startLoad(2, func() string { return i.public })
	defer l.stop()
	eventually(t, 10*time.Second, "traffic", func() bool { return l.count() > 10 })
	for _, want := range []string{"1 secrets", "0 secrets"} {
		if out := output("secrets", "rekey", "--database-url", w.url, "--secret-keys", keys); !strings.HasPrefix(out, want) {
			t.Errorf("inboxd secrets rekey says %q, want %q", out, want)
		}
	}
	before := l.count()
	eventually(t, 10*time.Second, "traffic afterwards", func() bool { return l.count() > before+50 })
	l.stop()
	if len(l.statuses) != 1 || l.statuses[http.StatusOK] == 0 {
		t.Errorf("the answers are %v, want 200 only", l.statuses)
	}
	if rows := w.dump(t); !strings.Contains(rows, "sealed:v1:new:") || strings.Contains(rows, "sealed:v1:test:") {
		t.Error("the secret is not sealed under the new key")
	}
}

// TestPauseIsEffectiveEverywhere pauses a handler through one instance and looks at what the other, which
// alone delivers, has still done a second later.
func TestPauseIsEffectiveEverywhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one := w.start(t, func(c *gatewayConfig) { c.Settings.Roles = []string{"ingest", "admin"} })
	w.start(t, func(c *gatewayConfig) { c.Settings.Roles = []string{"processor"} })
	handler := newDownstream(t, nil)
	registerShop(t, one)
	registerHandler(t, one, "books", handler.URL, nil)
	l := startLoad(2, func() string { return one.public })
	defer l.stop()
	eventually(t, 10*time.Second, "deliveries", func() bool { return handler.distinct() > 20 })
	one.call(t, http.MethodPost, "/handlers/books/pause", nil, nil)
	eventually(t, 10*time.Second, "messages from more than a second after the pause", func() bool {
		return w.count(t, `
SELECT count(*) FROM inbox_message, handler WHERE received_at > updated_at + interval '1.2 s'`) > 20
	})
	l.stop()
	if n := w.count(t, `SELECT count(*) FROM outcome, handler WHERE finished_at > updated_at + interval '1 s'`); n != 0 {
		t.Errorf("%d deliveries ended more than a second after the pause", n)
	}
	before := handler.distinct()
	one.call(t, http.MethodPost, "/handlers/books/resume", map[string]any{"reason": "they are back"}, nil)
	eventually(t, 2*time.Second, "deliveries after the pause", func() bool { return handler.distinct() > before })
}

// TestRotationIsEffectiveEverywhere rotates a source's secret and a handler's through one instance, and looks at
// the other: the new ones work within a second, the old ones until the overlap is over. So does disabling the source.
func TestRotationIsEffectiveEverywhere(t *testing.T) { // [B12]
	t.Parallel()
	w := newWorld(t)
	one := w.start(t, func(c *gatewayConfig) { c.Settings.Roles = []string{"admin"} })
	other := w.start(t, func(c *gatewayConfig) { c.Settings.Roles = []string{"ingest", "processor"} })
	headers := make(chan http.Header, 1000)
	handler := newDownstream(t, func(_ http.ResponseWriter, r *http.Request, _ []byte) { headers <- r.Header.Clone() })
	registerShop(t, one)
	registerHandler(t, one, "books", handler.URL, nil)

	sent := 0
	post := func(secret string) int {
		t.Helper()
		sent++
		request := shopRequest(t.Context(), other.public, fmt.Sprint("m", sent), []byte(`{}`))
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write([]byte(`{}`))
		request.Header.Set("X-Signature", hex.EncodeToString(mac.Sum(nil)))
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		return response.StatusCode
	}
	eventually(t, time.Second, "the source is known", func() bool { return post(shopSecret) == http.StatusOK })
	const next = "the shop's next secret"
	if got := post(next); got != http.StatusUnauthorized {
		t.Fatalf("before the rotation the new secret was answered %d", got)
	}

	one.call(t, http.MethodPost, "/sources/shop/secrets/rotate", map[string]any{"secret": next, "overlap": "1h"}, nil)
	eventually(t, time.Second, "the new secret verifies", func() bool { return post(next) == http.StatusOK })
	if got := post(shopSecret); got != http.StatusOK {
		t.Errorf("in the overlap the old secret was answered %d", got)
	}
	var secrets struct{ Items []struct{ ID string } }
	one.call(t, http.MethodGet, "/sources/shop/secrets", nil, &secrets)
	for i, secret := range []string{next, shopSecret} {
		post(secret)
		if got := verifiedBy(t, w, one, fmt.Sprint("m", sent)); !strings.HasPrefix(got, "by the secret "+secrets.Items[i].ID+", as the provider hmac asks") {
			t.Errorf("the timeline says %q, want the secret %s", got, secrets.Items[i].ID)
		}
	}
	former := fmt.Sprint("m", sent)
	w.exec(t, `UPDATE source SET secret_info = jsonb_set(secret_info, '{1,not_after}', to_jsonb(now()))`)
	eventually(t, time.Second, "the old secret no longer verifies", func() bool { return post(shopSecret) == http.StatusUnauthorized })
	if got := post(next); got != http.StatusOK {
		t.Errorf("after the overlap the new secret was answered %d", got)
	}

	if got := verifiedBy(t, w, one, former); !strings.Contains(got, secrets.Items[1].ID+", which the source has no more") {
		t.Errorf("after the overlap the timeline says %q", got)
	}
	var message struct{ Headers []struct{ Name string } }
	one.call(t, http.MethodGet, fmt.Sprint("/messages/", w.count(t, `SELECT max(id)::int FROM inbox_message`)), nil, &message)
	if len(message.Headers) == 0 || slices.ContainsFunc(message.Headers, func(h struct{ Name string }) bool {
		return !strings.Contains("Accept-Encoding User-Agent X-Id X-Signature X-Type", h.Name)
	}) {
		t.Errorf("the API shows the headers %v", message.Headers)
	}

	// Each message has as many signatures as the handler has secrets.
	signatures := func() int {
		t.Helper()
		for len(headers) > 0 {
			<-headers
		}
		if got := post(next); got != http.StatusOK {
			t.Fatalf("answered %d", got)
		}
		select {
		case h := <-headers:
			for name := range h {
				if strings.Contains(strings.ToLower(name), "secret") {
					t.Errorf("the handler got a header %q", name)
				}
			}
			return len(strings.Fields(h.Get("Webhook-Signature")))
		case <-time.After(10 * time.Second):
			t.Fatal("nothing was delivered")
			return 0
		}
	}
	var rotated struct{ Secret string }
	one.call(t, http.MethodPost, "/handlers/books/secrets/rotate", map[string]any{"reason": "yearly"}, &rotated)
	if !strings.HasPrefix(rotated.Secret, "whsec_") {
		t.Error("the handler's new secret is not shown")
	}
	eventually(t, 2*time.Second, "both secrets sign", func() bool { return signatures() == 2 })
	w.exec(t, `UPDATE handler SET secret_info = jsonb_set(secret_info, '{1,not_after}', to_jsonb(now()))`)
	eventually(t, 2*time.Second, "the new secret alone signs", func() bool { return signatures() == 1 })

	one.call(t, http.MethodPatch, "/sources/shop", map[string]any{"enabled": false}, nil)
	eventually(t, time.Second, "the disabled source takes nothing", func() bool { return post(next) == http.StatusNotFound })
}

// verifiedBy returns what a message's timeline says of how it was verified.
func verifiedBy(t *testing.T, w *world, i *instance, messageID string) string {
	t.Helper()
	var timeline struct {
		Events []struct{ Kind, Detail string }
	}
	i.call(t, http.MethodGet, fmt.Sprint("/messages/", w.count(t, `SELECT id::int FROM inbox_message WHERE message_id = $1`, messageID), "/timeline"), nil, &timeline)
	for _, event := range timeline.Events {
		if event.Kind == "verified" {
			return event.Detail
		}
	}
	return ""
}

// TestLookupSecret: a reference gives out what is meant to be a secret, and none of inboxd's own settings.
func TestLookupSecret(t *testing.T) {
	const text = "plant-referenced-91d0"
	t.Setenv("PLANTED", text)
	t.Setenv("INBOXD_PLANTED", text)
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	for name, content := range map[string]string{"secret": text + "\n", "empty": "", "large": strings.Repeat("x", maxSecretFile+1)} {
		if err := os.WriteFile(path(name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/proc/self/environ", path("link")); err != nil {
		t.Fatal(err)
	}
	for _, reference := range []string{"env:PLANTED", "file:" + path("secret")} {
		if secret, err := lookupSecret(reference); err != nil || secret.Reveal() != text {
			t.Errorf("%s gives %d bytes, %v", reference, len(secret), err)
		}
	}
	for _, reference := range []string{
		"env:INBOXD_PLANTED", "env:NOT_SET", "env:", "file:", "file:secret", "file:" + dir, "file:" + path("none"), "file:" + path("empty"), "file:" + path("large"),
		"file:/proc/self/environ", "file:/proc/self/cmdline", "file:" + path("link"),
	} {
		if secret, err := lookupSecret(reference); err == nil || secret != "" || strings.Contains(err.Error(), text) {
			t.Errorf("%s gives %d bytes, %v", reference, len(secret), err)
		}
	}
}
