package egress

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// ProxyError is a connection that the proxy didn't make.
type ProxyError struct {
	Status int   // what it answered to CONNECT; 0 if it didn't
	Err    error // why it could not be asked; nil if it answered
}

// Error never holds more of the proxy's URL than its address.
func (e *ProxyError) Error() string {
	if e.Err != nil {
		return "the proxy can't be used: " + e.Err.Error()
	}
	return fmt.Sprintf("the proxy answered %d", e.Status)
}

// Unwrap returns why the proxy could not be asked.
func (e *ProxyError) Unwrap() error { return e.Err }

// ParseProxy reads a proxy's URL: http or https, with a host and nothing after it. Its errors don't repeat the
// text, which may hold a password.
func ParseProxy(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" ||
		strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New("it must be http://host:port or https://host:port, with user:password@ before the host if the proxy wants them")
	}
	return u, nil
}

// dialProxy resolves the host, and asks the proxy for the first of its addresses that is allowed and answers.
func (d *Dialer) dialProxy(ctx context.Context, network, host, port string, named bool) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	resolver := d.policy.Resolver
	if resolver == nil {
		resolver = net.DefaultResolver
	}
	addrs, err := resolver.LookupNetIP(ctx, strings.Replace(network, "tcp", "ip", 1), host)
	if err != nil {
		return nil, err
	}
	var first error
	for _, addr := range addrs {
		err := d.checkAddr(addr, named)
		if err == nil {
			var conn net.Conn
			if conn, err = d.connect(ctx, net.JoinHostPort(addr.Unmap().String(), port)); err == nil {
				return conn, nil
			}
		}
		// What went wrong at an address that is allowed says more than that another one isn't.
		if first == nil || errors.Is(first, ErrDenied) {
			first = err
		}
	}
	return nil, first
}

// connect returns a tunnel to "ip:port" through the proxy, RFC 9110 section 9.3.6.
func (d *Dialer) connect(ctx context.Context, address string) (_ net.Conn, err error) {
	proxy := d.policy.Proxy
	port := proxy.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[proxy.Scheme]
	}
	conn, err := d.dialer.DialContext(ctx, "tcp", net.JoinHostPort(proxy.Hostname(), port))
	if err != nil {
		return nil, &ProxyError{Err: err}
	}
	// The exchange below heeds no context, so its end closes the connection.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer func() {
		if !stop() && err == nil {
			err = &ProxyError{Err: context.Cause(ctx)}
		}
		if err != nil {
			_ = conn.Close()
		}
	}()
	if proxy.Scheme == "https" {
		encrypted := tls.Client(conn, &tls.Config{
			ServerName: proxy.Hostname(), RootCAs: d.policy.ProxyRoots, MinVersion: tls.VersionTLS12,
		})
		if err := encrypted.HandshakeContext(ctx); err != nil {
			return nil, &ProxyError{Err: err}
		}
		conn = encrypted
	}
	request := bytes.NewBufferString("CONNECT " + address + " HTTP/1.1\r\nHost: " + address + "\r\n")
	if user := proxy.User; user != nil {
		password, _ := user.Password()
		request.WriteString("Proxy-Authorization: Basic " +
			base64.StdEncoding.EncodeToString([]byte(user.Username()+":"+password)) + "\r\n")
	}
	request.WriteString("\r\n")
	if _, err := conn.Write(request.Bytes()); err != nil {
		return nil, &ProxyError{Err: err}
	}
	reader := bufio.NewReader(io.LimitReader(conn, proxyAnswerLimit))
	answer, err := http.ReadResponse(reader, &http.Request{Method: http.MethodConnect}) //nolint:bodyclose // it is the tunnel, or goes with the connection
	if err != nil {
		// What it says may be a part of the answer, which is nobody's business.
		return nil, &ProxyError{Err: errors.New("its answer to CONNECT broke off, or is no HTTP")}
	}
	if answer.StatusCode < 200 || answer.StatusCode > 299 {
		return nil, &ProxyError{Status: answer.StatusCode}
	}
	if reader.Buffered() > 0 {
		// In HTTP and TLS it is the client who speaks first.
		return nil, &ProxyError{Err: errors.New("something came before anything was sent")}
	}
	return conn, nil
}

// proxyAnswerLimit is the most bytes that a proxy's answer to CONNECT may have.
const proxyAnswerLimit = 16 << 10
