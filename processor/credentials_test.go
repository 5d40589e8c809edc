package processor

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"html"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/inboxd/inboxd/inbox"
	"github.com/inboxd/inboxd/internal/egress"
)

// withCredentials returns handlerAt's with credentials.
func withCredentials(url string, c inbox.Credentials) *inbox.Handler {
	h := handlerAt(url)
	h.Credentials = &c
	return h
}

func TestForwardShowsCredentials(t *testing.T) {
	t.Parallel()
	url, requests := record(t)
	f := newForwarder(t, ForwarderConfig{})
	c, m := testMessage("{}")
	m.Headers = []byte("X-Tenant: the provider's\r\nX-Other: kept\r\n")
	for _, tc := range []struct {
		name        string
		credentials inbox.Credentials
		want        map[string]string
	}{
		{"none", inbox.Credentials{}, map[string]string{"Authorization": "", "X-Tenant": "the provider's"}},
		{"bearer", inbox.Credentials{Bearer: "abc"}, map[string]string{"Authorization": "Bearer abc"}},
		{"basic", inbox.Credentials{Basic: &inbox.BasicCredential{Username: "Aladdin", Password: "open sesame"}}, // RFC 7617 section 2
			map[string]string{"Authorization": "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="}},
		{
			"headers",
			inbox.Credentials{Headers: []inbox.CredentialHeader{{Name: "x-tenant", Value: "ours"}, {Name: "AUTHORIZATION", Value: "ApiKey k"}}},
			map[string]string{"Authorization": "ApiKey k", "X-Tenant": "ours", "X-Other": "kept"},
		},
	} {
		if r := f.Forward(t.Context(), withCredentials(url, tc.credentials), "shop", c, m); r.Verdict != inbox.VerdictDone {
			t.Fatalf("%s: %s", tc.name, show(r))
		}
		got := <-requests
		for name, want := range tc.want {
			if values := got.header[name]; strings.Join(values, "|") != want {
				t.Errorf("%s: %s is %q, want %q", tc.name, name, values, want)
			}
		}
	}
}

// TestAnswersAreMasked: a handler's error page repeats what it was sent, also where it is cut off.
func TestAnswersAreMasked(t *testing.T) {
	t.Parallel()
	pad := ""
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
		fmt.Fprint(w, pad, "Authorization: ", r.Header.Get("Authorization"), " X-Key: ", r.Header.Get("X-Key"), strings.Repeat(" and so on", 200))
	}))
	defer srv.Close()
	f := newForwarder(t, ForwarderConfig{})
	c, m := testMessage("{}")
	h := withCredentials(srv.URL, inbox.Credentials{
		Basic: &inbox.BasicCredential{Username: "me", Password: "a-long-password"}, Headers: []inbox.CredentialHeader{{Name: "X-Key", Value: "the-planted-key"}},
	})
	r := f.Forward(t.Context(), h, "shop", c, m)
	if got := string(r.ResponseBody); !strings.HasPrefix(got, "Authorization: Basic *** X-Key: *** and so on") {
		t.Errorf("kept %q", got)
	}
	for n := 930; n < 1024; n++ {
		pad = strings.Repeat("x", n)
		got := string(f.Forward(t.Context(), h, "shop", c, m).ResponseBody)
		for _, secret := range []string{"the-planted-key", "bWU6YS1sb25nLXBhc3N3b3Jk"} {
			if strings.Contains(got, secret[:shortestWord]) {
				t.Fatalf("with %d bytes in front, kept %q", n, got[n:])
			}
		}
	}
}

// TestAnswersAreMaskedInEverySpelling: an error page is JSON or HTML as a rule, and may have a part of the header only.
func TestAnswersAreMaskedInEverySpelling(t *testing.T) {
	t.Parallel()
	const secret = `pl4nt/ed+k3y=="<&>'\%`
	encode := func(v any) string {
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for name, spelling := range map[string]string{
		"plain":           secret,
		"JSON":            encode(secret),
		"JSON of PHP":     strings.ReplaceAll(encode(secret), "/", `\/`),
		"JSON of .NET":    strings.NewReplacer("+", `\u002B`, "'", `\u0027`).Replace(encode(secret)),
		"HTML":            html.EscapeString(secret),
		"HTML, careful":   strings.NewReplacer("/", "&#x2F;", "=", "&#61;", "&#39;", "&apos;", "&#34;", "&quot;").Replace(html.EscapeString(secret)),
		"URL":             url.QueryEscape(secret),
		"URL, lower case": strings.ToLower(url.QueryEscape(secret)),
		"path":            url.PathEscape(secret),
	} {
		answer := ""
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			fmt.Fprint(w, answer)
		}))
		f := newForwarder(t, ForwarderConfig{})
		c, m := testMessage("{}")
		h := withCredentials(srv.URL, inbox.Credentials{Headers: []inbox.CredentialHeader{{Name: "Authorization", Value: "ApiKey " + secret}}})
		answer = "there is no key " + spelling + " here"
		if got := string(f.Forward(t.Context(), h, "shop", c, m).ResponseBody); strings.Contains(got, "pl4nt") || !strings.Contains(got, "***") || !strings.HasSuffix(got, " here") {
			t.Errorf("%s: kept %q", name, got)
		}
		for n := 1024 - len(spelling); n < 1024-shortestWord; n++ { // cut off within it
			answer = strings.Repeat("-", n) + spelling + " here"
			if got := string(f.Forward(t.Context(), h, "shop", c, m).ResponseBody); strings.Contains(strings.NewReplacer(`\/`, "/", "&#x2F;", "/", "%2F", "/", "%2f", "/").Replace(got), "pl4nt/") {
				t.Errorf("%s, %d bytes in front: kept %q", name, n, got[n-1:])
			}
		}
		answer = "almost: pl4nt/ed+k3y=.-="
		if got := string(f.Forward(t.Context(), h, "shop", c, m).ResponseBody); got != answer {
			t.Errorf("%q was kept as %q", answer, got)
		}
		srv.Close()
	}
}

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  inbox.Secret
}

var serials atomic.Int64

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{}
	cert, key := a.issue(t, name)
	block, _ := pem.Decode([]byte(cert.Reveal()))
	var err error
	if a.cert, err = x509.ParseCertificate(block.Bytes); err != nil {
		t.Fatal(err)
	}
	block, _ = pem.Decode([]byte(key.Reveal()))
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	a.key, a.pem = parsed.(*ecdsa.PrivateKey), cert
	return a
}

// issue makes a certificate for both ends of a connection to 127.0.0.1, or the authority's own.
func (a *authority) issue(t *testing.T, name string) (cert, key inbox.Secret) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serials.Add(1)), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
		template.ExtKeyUsage = nil
		parent, signer = template, private
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &private.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	text, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return inbox.Secret(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		inbox.Secret(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: text}))
}

// serveTLS serves with a certificate of the authority, and asks clients for one of clients' if that is set.
func serveTLS(t *testing.T, a, clients *authority, handler http.HandlerFunc) string {
	t.Helper()
	cert, key := a.issue(t, "server")
	pair, err := tls.X509KeyPair([]byte(cert.Reveal()), []byte(key.Reveal()))
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(handler)
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	srv.Config.ErrorLog = log.New(io.Discard, "", 0) // of refused handshakes
	if clients != nil {
		srv.TLS.ClientCAs = x509.NewCertPool()
		srv.TLS.ClientCAs.AddCert(clients.cert)
		srv.TLS.ClientAuth = tls.RequireAndVerifyClientCert
	}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	return srv.URL
}

func TestForwardClientCertificate(t *testing.T) {
	t.Parallel()
	ours, theirs := newAuthority(t, "ours"), newAuthority(t, "theirs")
	var got atomic.Value
	url := serveTLS(t, theirs, ours, func(_ http.ResponseWriter, r *http.Request) { got.Store(r.TLS.PeerCertificates[0].Subject.CommonName) })
	open := serveTLS(t, theirs, nil, func(http.ResponseWriter, *http.Request) {})
	cert, key := ours.issue(t, "inboxd")
	otherCert, otherKey := theirs.issue(t, "stranger")
	f := newForwarder(t, ForwarderConfig{})
	c, m := testMessage("{}")
	for _, tc := range []struct {
		name string
		url  string
		tls  *inbox.TLSCredential
		done bool
	}{
		{"certificate and CA", url, &inbox.TLSCredential{Certificate: cert, Key: key, CA: theirs.pem}, true},
		{"no certificate", url, &inbox.TLSCredential{CA: theirs.pem}, false},
		{"a stranger's certificate", url, &inbox.TLSCredential{Certificate: otherCert, Key: otherKey, CA: theirs.pem}, false},
		{"no CA", url, &inbox.TLSCredential{Certificate: cert, Key: key}, false},
		{"another CA", url, &inbox.TLSCredential{Certificate: cert, Key: key, CA: ours.pem}, false},
		{"CA alone", open, &inbox.TLSCredential{CA: theirs.pem}, true},
		{"nothing", open, nil, false},
		{"two CAs", open, &inbox.TLSCredential{CA: ours.pem + theirs.pem}, true},
	} {
		r := f.Forward(t.Context(), withCredentials(tc.url, inbox.Credentials{TLS: tc.tls}), "shop", c, m)
		if (r.Verdict == inbox.VerdictDone) != tc.done || !tc.done && r.Class != inbox.ClassTLS && r.Class != inbox.ClassConnection {
			t.Errorf("%s: %s, want it done: %t", tc.name, show(r), tc.done)
		}
	}
	if got.Load() != "inboxd" {
		t.Errorf("the handler saw the certificate of %v", got.Load())
	}
}

// tokenEndpoint gives tokens t1, t2, …, and counts.
type tokenEndpoint struct {
	url    string
	asked  atomic.Int64
	mu     sync.Mutex
	form   map[string][]string // of the latest request
	user   string
	answer func(w http.ResponseWriter, n int64) bool // true if it has answered
}

func newTokenEndpoint(t *testing.T) *tokenEndpoint {
	t.Helper()
	e := &tokenEndpoint{}
	srv := httptest.NewServer(e)
	t.Cleanup(srv.Close)
	e.url = srv.URL + "/token"
	return e
}

func (e *tokenEndpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := e.asked.Add(1)
	_ = r.ParseForm()
	user, _, _ := r.BasicAuth()
	e.mu.Lock()
	e.form, e.user = r.PostForm, user
	answer := e.answer
	e.mu.Unlock()
	if answer != nil && answer(w, n) {
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"access_token": fmt.Sprintf("token-number-%d", n), "token_type": "bearer", "expires_in": 3600})
}

func oauth(url string) inbox.Credentials {
	return inbox.Credentials{OAuth2: &inbox.OAuth2Credential{
		TokenURL: url, ClientID: "inboxd", ClientSecret: "the client's secret", Scopes: []string{"events.write", "x"},
		Params: map[string]inbox.Secret{"audience": "orders"},
	}}
}

func TestForwardFetchesOneToken(t *testing.T) {
	t.Parallel()
	endpoint := newTokenEndpoint(t)
	release := make(chan struct{})
	endpoint.answer = func(http.ResponseWriter, int64) bool { <-release; return false }
	var wrong atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer token-number-1" {
			wrong.Add(1)
		}
	}))
	defer srv.Close()
	f := newForwarder(t, ForwarderConfig{})
	h := withCredentials(srv.URL, oauth(endpoint.url))
	c, m := testMessage("{}")
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			// Every snapshot has a handler of its own.
			again := *h
			credentials := *h.Credentials
			again.Credentials = &credentials
			if r := f.Forward(t.Context(), &again, "shop", c, m); r.Verdict != inbox.VerdictDone {
				t.Errorf("%s", show(r))
			}
		})
	}
	close(release)
	wg.Wait()
	if n := endpoint.asked.Load(); n != 1 || wrong.Load() != 0 {
		t.Errorf("50 attempts asked for %d tokens, and %d came without the one", n, wrong.Load())
	}
	if f := endpoint.form; endpoint.user != "inboxd" || f["grant_type"][0] != "client_credentials" || f["scope"][0] != "events.write x" || f["audience"][0] != "orders" || f["client_secret"] != nil {
		t.Errorf("the endpoint got %v of %q", f, endpoint.user)
	}
	inBody := oauth(endpoint.url)
	inBody.OAuth2.InBody = true
	f.Forward(t.Context(), withCredentials(srv.URL, inBody), "shop", c, m)
	if f := endpoint.form; endpoint.user != "" || len(f["client_secret"]) != 1 || f["client_id"][0] != "inboxd" {
		t.Errorf("with the client in the body, the endpoint got %d fields of %q", len(f), endpoint.user)
	}
}

// TestForwardForgetsTokenOnce: a 401 makes the next attempt fetch a token; when that is refused too, it is kept.
func TestForwardForgetsTokenOnce(t *testing.T) {
	t.Parallel()
	endpoint := newTokenEndpoint(t)
	status := http.StatusOK
	var shown []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown = append(shown, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer token-number-"))
		w.WriteHeader(status)
	}))
	defer srv.Close()
	f := newForwarder(t, ForwarderConfig{})
	h := withCredentials(srv.URL, oauth(endpoint.url))
	h.PermanentStatuses = []int{401}
	c, m := testMessage("{}")
	for i, tc := range []struct {
		status  int
		token   string
		verdict inbox.Verdict
	}{
		{200, "1", inbox.VerdictDone},
		{401, "1", inbox.VerdictRetry}, // forgotten
		{401, "2", inbox.VerdictPermanent},
		{401, "2", inbox.VerdictPermanent},
		{500, "2", inbox.VerdictRetry}, // it was taken
		{401, "2", inbox.VerdictRetry}, // forgotten
		{200, "3", inbox.VerdictDone},
	} {
		status = tc.status
		r := f.Forward(t.Context(), h, "shop", c, m)
		if r.Verdict != tc.verdict || shown[len(shown)-1] != tc.token || len(shown) != i+1 {
			t.Errorf("attempt %d: %s with the tokens %v, want verdict %d with %s", i+1, show(r), shown, tc.verdict, tc.token)
		}
	}
	if n := endpoint.asked.Load(); n != 3 {
		t.Errorf("%d tokens were asked for, want 3", n)
	}
}

func TestForwardWithoutToken(t *testing.T) {
	t.Parallel()
	var reached atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	defer srv.Close()
	const secret = "the client's secret"
	for _, tc := range []struct {
		name   string
		answer func(http.ResponseWriter)
		text   string
	}{
		{"refused", func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprintf(w, `{"error": "invalid_client", "error_description": "%s is wrong"}`, secret)
		}, "it answered 401 invalid_client"},
		{"an odd code", func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprintf(w, `{"error": "%s"}`, secret)
		}, "it answered 400"},
		{"no JSON", func(w http.ResponseWriter) { fmt.Fprint(w, "<html>"+secret) }, "no token from"},
		{"no token", func(w http.ResponseWriter) { fmt.Fprint(w, "{}") }, "no token from"},
		{"a token with a line end", func(w http.ResponseWriter) { fmt.Fprint(w, `{"access_token": "a\r\nX: y"}`) }, "no token from"},
		{"elsewhere", func(w http.ResponseWriter) {
			w.Header().Set("Location", srv.URL)
			w.WriteHeader(http.StatusTemporaryRedirect)
		}, "it answered 307"},
	} {
		endpoint := newTokenEndpoint(t)
		endpoint.answer = func(w http.ResponseWriter, _ int64) bool { tc.answer(w); return true }
		f := newForwarder(t, ForwarderConfig{})
		c, m := testMessage("{}")
		r := f.Forward(t.Context(), withCredentials(srv.URL, oauth(endpoint.url)), "shop", c, m)
		if r.Verdict != inbox.VerdictRetry || r.Class != inbox.ClassToken || !strings.Contains(r.Error, tc.text) || strings.Contains(r.Error, secret) {
			t.Errorf("%s: %s, want class token and %q", tc.name, show(r), tc.text)
		}
	}
	if n := reached.Load(); n != 0 {
		t.Errorf("%d requests came without a token", n)
	}
}

// TestTokenEndpointIsGuarded: the egress rules hold for it, and so does the time of the attempt.
func TestTokenEndpointIsGuarded(t *testing.T) {
	t.Parallel()
	endpoint := newTokenEndpoint(t)
	c, m := testMessage("{}")
	rules, err := egress.ParseRules([]string{"127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	f := newForwarder(t, ForwarderConfig{Dial: egress.New(egress.Policy{Deny: rules}).DialContext})
	r := f.Forward(t.Context(), withCredentials("http://127.0.0.2:9", oauth(endpoint.url)), "shop", c, m)
	if r.Class != inbox.ClassRefused || endpoint.asked.Load() != 0 {
		t.Errorf("a token endpoint that is denied: %s", show(r))
	}

	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) })
	endpoint.answer = func(http.ResponseWriter, int64) bool { <-hang; return true }
	f = newForwarder(t, ForwarderConfig{})
	h := withCredentials("http://127.0.0.1:9", oauth(endpoint.url))
	h.Timeout = 50 * time.Millisecond
	if r := f.Forward(t.Context(), h, "shop", c, m); r.Class != inbox.ClassToken || !strings.Contains(r.Error, "within 50ms") || r.Verdict != inbox.VerdictRetry {
		t.Errorf("a token endpoint that hangs: %s", show(r))
	}
	h.Timeout = time.Minute
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for endpoint.asked.Load() < 2 {
			time.Sleep(time.Millisecond) // until the endpoint has the request
		}
		cancel()
	}()
	if r := f.Forward(ctx, h, "shop", c, m); r.Verdict != inbox.VerdictRelease {
		t.Errorf("stopped while it waits for a token: %s, want a release", show(r))
	}
}

func TestTokenEndpointWithOwnCA(t *testing.T) {
	t.Parallel()
	theirs := newAuthority(t, "theirs")
	endpoint := &tokenEndpoint{}
	endpoint.url = serveTLS(t, theirs, nil, endpoint.ServeHTTP)
	url, requests := record(t)
	f := newForwarder(t, ForwarderConfig{})
	c, m := testMessage("{}")
	h := withCredentials(url, oauth(endpoint.url))
	if r := f.Forward(t.Context(), h, "shop", c, m); r.Class != inbox.ClassToken || !strings.Contains(r.Error, "x509") {
		t.Errorf("without the CA: %s", show(r))
	}
	credentials := oauth(endpoint.url)
	credentials.OAuth2.CA = theirs.pem
	h.Credentials = &credentials
	if r := f.Forward(t.Context(), h, "shop", c, m); r.Verdict != inbox.VerdictDone || (<-requests).header.Get("Authorization") != "Bearer token-number-1" {
		t.Errorf("with the CA: %s", show(r))
	}
}

func TestCheckCredentials(t *testing.T) {
	t.Parallel()
	a := newAuthority(t, "ours")
	cert, key := a.issue(t, "inboxd")
	_, otherKey := a.issue(t, "other")
	header := func(name string, value inbox.Secret) inbox.Credentials {
		return inbox.Credentials{Headers: []inbox.CredentialHeader{{Name: name, Value: value}}}
	}
	edit := func(f func(*inbox.OAuth2Credential)) inbox.Credentials {
		c := oauth("https://auth.example/token")
		f(c.OAuth2)
		return c
	}
	type test struct {
		name        string
		credentials inbox.Credentials
		field       string
	}
	tests := []test{
		{"none", inbox.Credentials{}, ""},
		{"all that go together", inbox.Credentials{Headers: []inbox.CredentialHeader{{Name: "X-Key", Value: "k"}, {Name: "Cookie", Value: "a=b"}}, OAuth2: oauth("https://auth.example").OAuth2, TLS: &inbox.TLSCredential{Certificate: cert, Key: key, CA: a.pem}}, ""},
		{"a blank value", header("X-Key", " "), "credentials.headers[0].value"},
		{"a value with a line end", header("X-Key", "a\r\nHost: b"), "credentials.headers[0].value"},
		{"twice", inbox.Credentials{Headers: []inbox.CredentialHeader{{Name: "X-Key", Value: "k"}, {Name: "x-key", Value: "k"}}}, "credentials.headers[1].name"},
		{"two kinds", inbox.Credentials{Bearer: "b", Basic: &inbox.BasicCredential{Username: "u"}}, "credentials"},
		{"bearer and header", inbox.Credentials{Bearer: "b", Headers: []inbox.CredentialHeader{{Name: "authorization", Value: "k"}}}, "credentials"},
		{"bearer with a line end", inbox.Credentials{Bearer: "b\n"}, "credentials.bearer"},
		{"a colon", inbox.Credentials{Basic: &inbox.BasicCredential{Username: "a:b", Password: "c"}}, "credentials.basic.username"},
		{"token URL", edit(func(o *inbox.OAuth2Credential) { o.TokenURL = "ftp://x" }), "credentials.oauth2.token_url"},
		{"token URL with a user", edit(func(o *inbox.OAuth2Credential) { o.TokenURL = "https://a:b@x" }), "credentials.oauth2.token_url"},
		{"no client", edit(func(o *inbox.OAuth2Credential) { o.ClientID = "" }), "credentials.oauth2.client_id"},
		{"no client secret", edit(func(o *inbox.OAuth2Credential) { o.ClientSecret = "" }), "credentials.oauth2.client_secret"},
		{"a parameter of OAuth's own", edit(func(o *inbox.OAuth2Credential) { o.Params = map[string]inbox.Secret{"scope": "x"} }), "credentials.oauth2.params"},
		{"CA of the token endpoint", edit(func(o *inbox.OAuth2Credential) { o.CA = "x" }), "credentials.oauth2.ca"},
		{"empty TLS", inbox.Credentials{TLS: &inbox.TLSCredential{}}, "credentials.tls"},
		{"no key", inbox.Credentials{TLS: &inbox.TLSCredential{Certificate: cert}}, "credentials.tls.key"},
		{"no certificate", inbox.Credentials{TLS: &inbox.TLSCredential{Key: key}}, "credentials.tls.certificate"},
		{"another's key", inbox.Credentials{TLS: &inbox.TLSCredential{Certificate: cert, Key: otherKey}}, "credentials.tls"},
		{"no CA in PEM", inbox.Credentials{TLS: &inbox.TLSCredential{CA: "x"}}, "credentials.tls.ca"},
	}
	for _, name := range []string{
		"Host", "content-length", "Content-Type", "Transfer-Encoding", "Connection", "webhook-id", "Webhook-Signature", "webhook-x", "inbox-fence",
		"Inbox_Fence", "traceparent", "User-Agent", "Proxy-Authorization", "Te", "idempotency-key", "X Key", "", "X:Key",
	} {
		tests = append(tests, test{"header " + name, header(name, "planted value"), "credentials.headers[0].name"})
	}
	for _, tc := range tests {
		err := Check(withCredentials("https://handler.example", tc.credentials))
		wrong, _ := errors.AsType[*inbox.InvalidError](err)
		if tc.field == "" && err != nil || tc.field != "" && (wrong == nil || wrong.Field != tc.field) {
			t.Errorf("%s: Check = %v, want one of %q", tc.name, err, tc.field)
		}
		if err != nil && (strings.Contains(err.Error(), "planted") || strings.Contains(err.Error(), "secret:")) {
			t.Errorf("%s: Check = %v shows a value", tc.name, err)
		}
	}
	plain := withCredentials("http://handler.example", inbox.Credentials{TLS: &inbox.TLSCredential{CA: a.pem}})
	if err := Check(plain); err == nil || !strings.Contains(err.Error(), "https") {
		t.Errorf("TLS without https: Check = %v", err)
	}
	if leaf := Certificate(&inbox.TLSCredential{Certificate: cert}); leaf == nil || leaf.Subject.CommonName != "inboxd" {
		t.Errorf("Certificate = %v", leaf)
	}
	if !slices.Equal(tests[1].credentials.Kinds(), []string{"header X-Key", "header Cookie", "oauth2 inboxd at https://auth.example", "client certificate", "own CA"}) {
		t.Errorf("Kinds = %q", tests[1].credentials.Kinds())
	}
}
