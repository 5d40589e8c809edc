package main

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestNoWayToMetadata tries to register handlers at addresses that they must not have, in every spelling, and to
// get there by a name and by redirects.
func TestNoWayToMetadata(t *testing.T) { // [F6]
	t.Parallel()
	var reached atomic.Int64
	count := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) })
	hidden, local := serveOn(t, "127.0.0.2", count), serveOn(t, "127.0.0.1", count)
	status := http.StatusTemporaryRedirect
	redirecting := serveOn(t, "127.0.0.3", http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Location", hidden.URL)
		rw.WriteHeader(status)
	}))
	_, port, _ := net.SplitHostPort(local.Listener.Addr().String())

	w := newWorld(t)
	i := w.start(t, func(c *gatewayConfig) {
		c.Settings.EgressDeny = []string{"127.0.0.1", "127.0.0.2/32", "::1", "10.0.0.0/8", "*.internal"}
	})
	registerShop(t, i)
	api := operators{url: i.admin, token: i.token}
	registerHandler(t, i, "redirecting", redirecting.URL, map[string]any{"max_retry_count": 0})

	for _, host := range []string{
		"169.254.169.254", "2852039166", "0xa9fea9fe", "025177524776", "0251.0376.0251.0376", "0xa9.0xfe.0xa9.0xfe", "169.16689662",
		"169.254.169.254.", "[::ffff:169.254.169.254]", "[::ffff:a9fe:a9fe]", "[::a9fe:a9fe]", "[64:ff9b::a9fe:a9fe]", "[64:ff9b:1::a9fe:a9fe]",
		"[2002:a9fe:a9fe::1]", "[2001:0:a9fe:a9fe::f5f6:fdfc]", "[fd00:ec2::254]", "[fe80::1%25eth0]", "0.0.0.0", "0", "[::]",
		"127.0.0.2", "0x7f.2", "2130706434", "127.2", "[::ffff:127.0.0.2]", "[::1]", "10.1.2.3", "[64:ff9b::10.1.2.3]", "metadata.google.internal",
	} {
		for _, try := range []struct{ method, path, name string }{{http.MethodPost, "/handlers", "x"}, {http.MethodPatch, "/handlers/redirecting", ""}} {
			body := map[string]any{"url": "http://" + host + ":" + port + "/"}
			if try.name != "" {
				body["name"], body["sources"] = try.name, []string{"*"}
			}
			_, err := api.call(t.Context(), try.method, try.path, body, nil)
			if err == nil || !strings.Contains(err.Error(), "the egress rules don't allow") {
				t.Errorf("%s %s with %s = %v, want a refusal by the egress rules", try.method, try.path, host, err)
			}
		}
	}

	// What a name resolves to is seen only at the dial.
	registerHandler(t, i, "by-name", "http://localhost:"+port, map[string]any{"max_retry_count": 0})
	parked := func(handler, class, text string) {
		t.Helper()
		eventually(t, 10*time.Second, handler+" has an attempt of class "+class, func() bool {
			return w.count(t, `
SELECT count(*) FROM attempt AS a JOIN handler AS h ON h.id = a.handler_id
WHERE h.name = $1 AND a.class = $2 AND a.error LIKE $3`, handler, class, text) > 0
		})
	}
	for _, status = range []int{http.StatusMovedPermanently, http.StatusFound, http.StatusTemporaryRedirect, http.StatusPermanentRedirect} {
		if code, _, err := postShop(t.Context(), http.DefaultClient, i.public, "redirect-"+http.StatusText(status), []byte(`{}`)); code != http.StatusOK {
			t.Fatalf("posting = %d, %v", code, err)
		}
		eventually(t, 10*time.Second, "it is parked", func() bool {
			return w.count(t, `SELECT count(*) FROM attempt WHERE class = 'redirect' AND response_status = $1`, status) == 1
		})
	}
	parked("by-name", "refused", "the egress rules don't allow %: it is on the deny list")
	parked("redirecting", "redirect", "%redirects are not followed")
	if n := reached.Load(); n != 0 {
		t.Errorf("%d requests came through", n)
	}
}

// serveOn serves on an address of loopback.
func serveOn(t *testing.T, address string, handler http.Handler) *httptest.Server {
	t.Helper()
	listener, err := net.Listen("tcp4", net.JoinHostPort(address, "0"))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(handler)
	_ = server.Listener.Close()
	server.Listener = listener
	server.Start()
	t.Cleanup(server.Close)
	return server
}

// TestEgressSettings: each mistake is named, and a proxy's password is not repeated.
func TestEgressSettings(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	status := run(context.Background(), []string{
		"serve", "--database-url", "postgres://nobody@127.0.0.1:1/none", "--egress-allow", "books.example,10.0.0.0/40",
		"--egress-deny", "private,2852039166", "--egress-proxy", "socks5://me:PASSWORD@proxy",
	}, &out, &out)
	for _, want := range []string{`--egress-allow: "10.0.0.0/40"`, `--egress-deny: "2852039166"`, "--egress-proxy: it must be http://"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in %s", want, out.String())
		}
	}
	if status == 0 || strings.Contains(out.String(), "PASSWORD") {
		t.Errorf("status %d: %s", status, out.String())
	}
}
