package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	stdlog "log"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// planted are the secrets of handlers' credentials, by what they are.
var planted = map[string]string{
	"a handler's header": "plant-handler-header-90d4", "a bearer token": "plant-bearer-token-17aa", "a basic password": "plant-basic-password-c3f8",
	"an OAuth2 client's secret": "plant-client-secret-5e61", "an OAuth2 access token": "plant-access-token-d20b", "an OAuth2 parameter": "plant-parameter-6b9c",
}

// guarded is a handler that lets nobody in without the right credentials, and answers who is with 500 and what it
// was shown, as an error page does.
type guarded struct {
	*httptest.Server
	mu     sync.Mutex
	let    map[string]int // by path
	tokens int            // that it gave as a token endpoint
}

func newGuarded(t *testing.T) *guarded {
	t.Helper()
	g := &guarded{let: make(map[string]int)}
	g.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.mu.Lock()
		defer g.mu.Unlock()
		user, password, _ := r.BasicAuth()
		authorization := r.Header.Get("Authorization")
		ok := false
		switch r.URL.Path {
		case "/token":
			_ = r.ParseForm()
			if user == "inboxd" && password == planted["an OAuth2 client's secret"] && r.PostForm.Get("audience") == planted["an OAuth2 parameter"] {
				g.tokens++
				w.Header().Set("Content-Type", "application/json")
				fmt.Fprintf(w, `{"access_token": "%s", "token_type": "Bearer", "expires_in": 3600}`, planted["an OAuth2 access token"])
			} else {
				http.Error(w, `{"error": "invalid_client"}`, http.StatusUnauthorized)
			}
			return
		case "/bearer":
			ok = authorization == "Bearer "+planted["a bearer token"] && r.Header.Get("X-Tenant-Proof") == planted["a handler's header"]
		case "/basic":
			ok = user == "me" && password == planted["a basic password"]
		case "/oauth2":
			ok = authorization == "Bearer "+planted["an OAuth2 access token"]
		case "/tls":
			ok = len(r.TLS.PeerCertificates) == 1 && r.TLS.PeerCertificates[0].Subject.CommonName == "inboxd"
		}
		if !ok {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		g.let[r.URL.Path]++
		w.WriteHeader(http.StatusInternalServerError)
		fmt.Fprintln(w, "I broke on", authorization, r.Header.Get("X-Tenant-Proof"))
	}))
	g.TLS = &tls.Config{ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12}
	g.Config.ErrorLog = stdlog.New(io.Discard, "", 0)
	g.StartTLS()
	t.Cleanup(g.Close)
	return g
}

// credentials returns those that the paths of g want, and the lines of the certificate's key.
func (g *guarded) credentials(t *testing.T) (by map[string]map[string]any, key string) {
	t.Helper()
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: g.Certificate().Raw}))
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "inboxd"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	text, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	key = string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: text}))
	trust := map[string]any{"ca": ca}
	return map[string]map[string]any{
		"bearer": {"tls": trust, "bearer": planted["a bearer token"], "headers": []map[string]any{{"name": "X-Tenant-Proof", "value": planted["a handler's header"]}}},
		"basic":  {"tls": trust, "basic": map[string]any{"username": "me", "password": planted["a basic password"]}},
		"oauth2": {"tls": trust, "oauth2": map[string]any{
			"token_url": g.URL + "/token", "client_id": "inboxd", "client_secret": planted["an OAuth2 client's secret"], "ca": ca,
			"params": map[string]any{"audience": planted["an OAuth2 parameter"]},
		}},
		"tls": {"tls": map[string]any{
			"ca": ca, "key": key,
			"certificate": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		}},
	}, key
}

// keyLine is a line of a key in PEM that is in no other.
func keyLine(key string) string { return strings.Split(key, "\n")[2] }

// TestCredentialsThroughTheGateway registers a handler of each kind over the API, delivers to it, and shows what the API
// tells of it; a message came through only with the credentials.
func TestCredentialsThroughTheGateway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := t.TempDir()
	refs, outside := filepath.Join(dir, "refs"), filepath.Join(dir, "outside")
	if err := os.Mkdir(refs, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{outside, filepath.Join(refs, "basic")} {
		if err := os.WriteFile(file, []byte(planted["a basic password"]+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	i := w.start(t, func(c *gatewayConfig) { c.Settings.CredentialRefs = []string{"file:" + refs + "/*", "env:HANDLER_*"} })
	registerShop(t, i)
	g := newGuarded(t)
	by, key := g.credentials(t)
	by["basic"]["basic"].(map[string]any)["password"] = "file:" + filepath.Join(refs, "basic")
	for name, credentials := range by {
		registerHandler(t, i, name, g.URL+"/"+name, map[string]any{"credentials": credentials, "max_retry_count": 1, "backoff_base": "1ms"})
	}
	api := operators{url: i.admin, token: i.token}
	for field, body := range map[string]map[string]any{
		"credentials.headers[0].name":      {"credentials": map[string]any{"headers": []map[string]any{{"name": "Webhook-Id", "value": "x"}}}},
		"credentials.tls":                  {"credentials": map[string]any{"tls": map[string]any{"certificate": "x", "key": key}}},
		"credentials.oauth2.token_url":     {"credentials": map[string]any{"oauth2": map[string]any{"token_url": "http://169.254.169.254/", "client_id": "x", "client_secret": "x"}}},
		"credentials: must be given again": {"url": g.URL + "/elsewhere"},
	} {
		status, err := api.call(t.Context(), http.MethodPatch, "/handlers/tls", body, nil)
		if status != http.StatusUnprocessableEntity || !strings.Contains(err.Error(), strings.Split(field, ": ")[0]) {
			t.Errorf("a wrong %s = %d, %v", field, status, err)
		}
	}
	for _, reference := range []string{
		"file:" + refs + "/nowhere", "file:" + outside, "file:" + refs + "/../outside", "file:" + refs + "/inner/x", "file:" + refs, "env:PATH",
	} {
		want := "is not among --credential-refs"
		if strings.HasSuffix(reference, "nowhere") {
			want = "can't be read"
		}
		status, err := api.call(t.Context(), http.MethodPatch, "/handlers/basic",
			map[string]any{"credentials": map[string]any{"basic": map[string]any{"username": "me", "password": reference}}}, nil)
		if status != http.StatusUnprocessableEntity || !strings.Contains(err.Error(), reference+" "+want) {
			t.Errorf("a password at %s = %d, %v, want it to say that it %s", reference, status, err, want)
		}
	}
	if status, _, err := postShop(t.Context(), http.DefaultClient, i.public, "m1", []byte("{}")); status != http.StatusOK {
		t.Fatalf("posted %d, %v", status, err)
	}
	eventually(t, 10*time.Second, "all are parked", func() bool {
		return w.count(t, `SELECT count(*) FROM delivery WHERE status = 'MANUAL_REQUIRED'`) == len(by)
	})
	g.mu.Lock()
	defer g.mu.Unlock()
	for name := range by {
		if g.let["/"+name] != 2 {
			t.Errorf("%s: %d attempts of 2 came in", name, g.let["/"+name])
		}
	}
	if g.tokens != 1 {
		t.Errorf("%d tokens for two attempts, want 1", g.tokens)
	}
	if n := w.count(t, `SELECT count(*) FROM attempt WHERE response_status = 500 AND encode(response_body, 'escape') LIKE 'I broke on %'`); n != 2*len(by) {
		t.Errorf("%d attempts have the answer, want %d", n, 2*len(by))
	}
	var shown struct {
		Credentials struct {
			TLS struct {
				Subject  string    `json:"subject"`
				NotAfter time.Time `json:"not_after"`
				OwnCA    bool      `json:"own_ca"`
			}
		}
	}
	i.call(t, http.MethodGet, "/handlers/tls", nil, &shown)
	if s := shown.Credentials.TLS; s.Subject != "CN=inboxd" || time.Until(s.NotAfter) > time.Hour || time.Until(s.NotAfter) < 50*time.Minute || !s.OwnCA {
		t.Errorf("of the certificate the API shows %+v", s)
	}
}
