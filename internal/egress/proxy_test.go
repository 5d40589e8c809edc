package egress_test

import (
	"bufio"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/inboxd/inboxd/internal/egress"
)

// proxy takes CONNECT and remembers what it was asked for.
type proxy struct {
	*httptest.Server
	asked  chan string
	status atomic.Int64 // of the answer, if it is not 200
}

func newProxy(t *testing.T, encrypted bool) *proxy {
	t.Helper()
	p := &proxy{asked: make(chan string, 100)}
	p.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.asked <- r.Method + " " + r.Host + " " + r.Header.Get("Proxy-Authorization")
		if status := p.status.Load(); status != 0 {
			http.Error(w, "SECRET of the proxy", int(status))
			return
		}
		to, err := net.Dial("tcp", r.Host)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		defer to.Close()
		from, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer from.Close()
		_, _ = io.WriteString(from, "HTTP/1.1 200 Connection established\r\n\r\n")
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = io.Copy(to, buffered)
			_ = to.(*net.TCPConn).CloseWrite()
		}()
		_, _ = io.Copy(from, to)
		_ = from.Close()
		<-done
	}))
	if encrypted {
		p.StartTLS()
	} else {
		p.Start()
	}
	t.Cleanup(p.Close)
	return p
}

func (p *proxy) url(t *testing.T, user string) *url.URL {
	t.Helper()
	u, err := egress.ParseProxy(strings.Replace(p.URL, "://", "://"+user, 1))
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// TestProxy reaches a handler by name through a proxy, which is asked for the address and never for a name.
func TestProxy(t *testing.T) {
	t.Parallel()
	for _, encrypted := range []bool{false, true} {
		p := newProxy(t, encrypted)
		roots := x509.NewCertPool()
		if encrypted {
			roots.AddCert(p.Certificate())
		}
		handler := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Host) }))
		defer handler.Close()
		_, port, _ := net.SplitHostPort(handler.Listener.Addr().String())
		d := egress.New(egress.Policy{
			Proxy: p.url(t, "me:pass%21@"), ProxyRoots: roots, Deny: rules(t, "10.0.0.0/8"),
			Resolver: fakeDNS(func() []netip.Addr {
				return []netip.Addr{netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("169.254.169.254"), netip.MustParseAddr("127.0.0.1")}
			}),
		})
		client := http.Client{Transport: &http.Transport{DialContext: d.DialContext}}
		defer client.CloseIdleConnections()
		resp, err := client.Get("http://books.example:" + port)
		if err != nil {
			t.Fatalf("encrypted %v: %v", encrypted, err)
		}
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if want := "books.example:" + port; string(body) != want {
			t.Errorf("the handler saw the host %q, want %q", body, want)
		}
		if got, want := <-p.asked, "CONNECT 127.0.0.1:"+port+" Basic bWU6cGFzcyE="; got != want {
			t.Errorf("the proxy was asked for %q, want %q", got, want)
		}
		if len(p.asked) != 0 {
			t.Errorf("the proxy was also asked for %q", <-p.asked)
		}
	}
}

// TestProxyDenied: a proxy is no way around the rules.
func TestProxyDenied(t *testing.T) {
	t.Parallel()
	p := newProxy(t, false)
	var addr atomic.Value
	addr.Store("192.0.2.1")
	d := egress.New(egress.Policy{
		Proxy: p.url(t, ""), Deny: rules(t, "private", "films.example"),
		Resolver: fakeDNS(func() []netip.Addr { return []netip.Addr{netip.MustParseAddr(addr.Load().(string))} }),
	})
	p.status.Store(http.StatusForbidden)
	if _, err := d.DialContext(t.Context(), "tcp", "books.example:80"); errors.Is(err, egress.ErrDenied) || len(p.asked) != 1 {
		t.Errorf("an address that is allowed = %v, asked %d times", err, len(p.asked))
	}
	<-p.asked
	for _, resolved := range []string{"169.254.169.254", "10.0.0.1", "127.0.0.1", "fd00:ec2::254", "64:ff9b::a9fe:a9fe"} {
		addr.Store(resolved)
		if _, err := d.DialContext(t.Context(), "tcp", "books.example:80"); !errors.Is(err, egress.ErrDenied) {
			t.Errorf("a name that is %s now = %v, want ErrDenied", resolved, err)
		}
	}
	addr.Store("192.0.2.1")
	for _, host := range []string{"films.example", "169.254.169.254", "127.0.0.1", "[::ffff:127.0.0.1]", "2852039166", "0251.0376.0251.0376", "0x7f.1"} {
		if _, err := d.DialContext(t.Context(), "tcp", host+":80"); !errors.Is(err, egress.ErrDenied) {
			t.Errorf("%s = %v, want ErrDenied", host, err)
		}
	}
	if len(p.asked) != 0 {
		t.Errorf("the proxy was asked for %q", <-p.asked)
	}
}

// TestProxyFails: whatever the proxy does, the error says that it was the proxy, and nothing that it said.
func TestProxyFails(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, answer, want string }{
		{"refuses", "HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 6\r\n\r\nSECRET", "the proxy answered 407"},
		{"no HTTP", "SECRET\r\n\r\n", "the proxy can't be used: its answer to CONNECT broke off, or is no HTTP"},
		{"hangs up", "", "the proxy can't be used: its answer to CONNECT broke off, or is no HTTP"},
		{"too much", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 20000) + "\r\n\r\n", "the proxy can't be used: its answer to CONNECT broke off, or is no HTTP"},
		{"speaks first", "HTTP/1.1 200 OK\r\n\r\nSECRET", "the proxy can't be used: something came before anything was sent"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			ln, err := net.Listen("tcp4", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				conn, err := ln.Accept()
				if err != nil {
					return
				}
				defer conn.Close()
				_, _ = http.ReadRequest(bufio.NewReader(conn))
				_, _ = io.WriteString(conn, tc.answer)
			}()
			defer func() { _ = ln.Close(); <-done }()
			d := egress.New(egress.Policy{Proxy: &url.URL{Scheme: "http", Host: ln.Addr().String(), User: url.UserPassword("me", "SECRET")}})
			_, err = d.DialContext(t.Context(), "tcp", "192.0.2.1:80")
			proxyErr, ok := errors.AsType[*egress.ProxyError](err)
			if !ok || proxyErr.Error() != tc.want || errors.Is(err, egress.ErrDenied) {
				t.Errorf("DialContext = %v, want %q", err, tc.want)
			}
		})
	}
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = ln.Close()
	d := egress.New(egress.Policy{Proxy: &url.URL{Scheme: "http", Host: ln.Addr().String(), User: url.UserPassword("me", "SECRET")}})
	if _, err := d.DialContext(t.Context(), "tcp", "192.0.2.1:80"); err == nil || strings.Contains(err.Error(), "SECRET") || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("nobody there = %v", err)
	}
}

func TestParseProxy(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "proxy:3128", "socks5://proxy", "http://", "http://SECRET@", "http://me:SECRET@proxy/path", "http://proxy?SECRET", "http://me:SECRET\x7f@proxy"} {
		if _, err := egress.ParseProxy(text); err == nil || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("ParseProxy(%q) = %v", text, err)
		}
	}
}
