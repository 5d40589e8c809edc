package processor

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/inboxd/inboxd/inbox"
	"github.com/inboxd/inboxd/internal/egress"
)

// The bounds of an attempt.
const (
	keptAnswer  = 1024             // bytes of a failed attempt's answer that are kept
	drainLimit  = 64 << 10         // bytes of an answer that are read so that its connection can be used again
	answerTime  = time.Second      // what an answer's body may take once its headers are there
	headerLimit = 64 << 10         // bytes of an answer's headers
	errorLimit  = 1024             // bytes of Result.Error
	tlsTime     = 10 * time.Second // a TLS handshake

	// Shorter than the 5 s after which Node and uvicorn close an idle connection: a request that is sent
	// just then fails, and a POST can't be sent again without knowing whether it was read.
	idleTime = 4 * time.Second

	maxPrepared = 4096 // handlers
)

// ForwarderConfig is what a Forwarder is made of. The zero value is ready for use.
type ForwarderConfig struct {
	// Dial connects to handlers, by default under egress.Policy{}. A proxy is Dial's business; the environment's
	// is never used, since it would connect to what the dialer refuses.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	RootCAs *x509.CertPool // who may sign a handler's certificate; nil takes the system's
	Version string         // of inboxd, for User-Agent: inboxd/{Version}; default "dev"
}

// Forwarder makes attempts over HTTP. It is safe for concurrent use.
type Forwarder struct {
	transport *http.Transport // of handlers without TLS settings of their own
	dial      func(ctx context.Context, network, address string) (net.Conn, error)
	roots     *x509.CertPool
	userAgent string

	mu       sync.RWMutex
	prepared map[int64]*prepared // by handler; guarded by mu
}

// NewForwarder makes a Forwarder. Handlers share its connections, which are kept for some seconds; those with a
// client certificate or a CA have their own.
func NewForwarder(cfg ForwarderConfig) *Forwarder {
	if cfg.Dial == nil {
		cfg.Dial = egress.New(egress.Policy{}).DialContext
	}
	if cfg.Version == "" {
		cfg.Version = "dev"
	}
	f := &Forwarder{userAgent: "inboxd/" + cfg.Version, prepared: make(map[int64]*prepared), dial: cfg.Dial, roots: cfg.RootCAs}
	f.transport = f.newTransport(&tls.Config{})
	return f
}

// newTransport returns a transport with what the settings say beyond those of all handlers.
func (f *Forwarder) newTransport(own *tls.Config) *http.Transport {
	roots := own.RootCAs
	if roots == nil {
		roots = f.roots
	}
	return &http.Transport{
		DialContext: f.dial,
		TLSClientConfig: &tls.Config{
			RootCAs:            roots,
			Certificates:       own.Certificates,
			MinVersion:         tls.VersionTLS12,
			ClientSessionCache: tls.NewLRUClientSessionCache(256),
		},
		TLSHandshakeTimeout: tlsTime,
		// Neither ask for gzip nor unpack it: an answer is kept as it came.
		DisableCompression: true,
		// What is in use has no limit here: a handler's concurrency, at most 1000, is one.
		MaxIdleConnsPerHost:    1000,
		IdleConnTimeout:        idleTime,
		MaxResponseHeaderBytes: headerLimit,
		WriteBufferSize:        16 << 10, // most messages go out in one write
		ForceAttemptHTTP2:      true,     // an own DialContext would turn it off
		HTTP2: &http.HTTP2Config{
			// A timeout ends a request and leaves its HTTP/2 connection in use; without pings every
			// request would go to a connection that is dead.
			SendPingTimeout: 15 * time.Second,
			PingTimeout:     5 * time.Second,
		},
	}
}

// Close closes the connections that are not in use. The Forwarder stays usable.
func (f *Forwarder) Close() {
	f.transport.CloseIdleConnections()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.prepared {
		p.close()
	}
}

// Forward makes one attempt of the claimed delivery of m: one POST of the exact body to h.URL, with the
// headers that README.md lists and h.Credentials. It follows no redirect, and never sends again what the handler may have got.
// source is the name of the message's source.
//
// The attempt takes at most h.Timeout. What came of it:
//   - an answer 2xx is VerdictDone as soon as its headers are there, whatever becomes of its body;
//   - one of h.PermanentStatuses is VerdictPermanent;
//   - 429 and 503 with a Retry-After (RFC 9110 section 10.2.3) are VerdictRetry after that time but not
//     more than h.Backoff.Cap, and never sooner than the backoff would be;
//   - any other answer, none, and a handler whose URL, secrets or credentials are not usable, or whose token
//     endpoint gives no token, are VerdictRetry after the backoff; so is the first 401 to a token;
//   - VerdictRelease, if ctx ended before there was a connection, so that nothing was sent. Once there is
//     one, an end of ctx makes it a failed attempt, since the handler may have got the message.
//
// Result.Error never holds more of the URL than its host, nor a secret, nor a part of the message or the
// answer. Result.ResponseBody is what could be read of a failure's first 1024 bytes within a second, with the
// handler's credentials masked.
//
// A header value with a control character in it can't be sent, and is left out, inboxd's own included (a
// biz_key with a line feed). Values are sent as the bytes they are, in UTF-8 where they are text.
// A provider's header that has a name of inboxd's own (webhook-id, webhook-timestamp, webhook-signature,
// user-agent, inbox-*) is sent as inbox-original-{name}.
func (f *Forwarder) Forward(
	ctx context.Context, h *inbox.Handler, source string, c inbox.Claim, m *inbox.Message,
) inbox.Result {
	started := time.Now()
	r := inbox.Result{Claim: c, Verdict: inbox.VerdictRetry}
	if p, err := f.prepare(h); err != nil {
		r.Class, r.Error = inbox.ClassRequest, err.Error()
	} else {
		f.exchange(ctx, h, p, source, m, started, &r)
	}
	if r.Verdict == inbox.VerdictRetry {
		// The delay is that of Retry-After by now, or zero.
		r.Delay = max(min(r.Delay, h.Backoff.Cap), h.Backoff.Jittered(c.RetryCount))
	}
	r.Duration = time.Since(started)
	return r
}

// errTimeout ends an attempt that has lasted for its handler's timeout, or whose answer's body has lasted
// for answerTime.
var errTimeout = errors.New("the attempt's time is over")

// exchange is one request and its answer.
type exchange struct {
	cancel    context.CancelCauseFunc
	trace     httptrace.ClientTrace
	connected atomic.Bool           // there was a connection, so the request may have been sent
	answered  atomic.Bool           // the first byte of an answer came
	handshake atomic.Pointer[error] // what a TLS handshake failed with
}

func (x *exchange) expire()                       { x.cancel(errTimeout) }
func (x *exchange) gotConn(httptrace.GotConnInfo) { x.connected.Store(true) }
func (x *exchange) gotFirstByte()                 { x.answered.Store(true) }
func (x *exchange) shaken(_ tls.ConnectionState, e error) {
	if e != nil {
		x.handshake.Store(&e)
	}
}

// exchange sends the message of r's claim and puts into r what came of it.
func (f *Forwarder) exchange(
	ctx context.Context, h *inbox.Handler, p *prepared, source string, m *inbox.Message, started time.Time, r *inbox.Result,
) {
	x := &exchange{}
	own, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	x.cancel = cancel
	timer := time.AfterFunc(h.Timeout, x.expire)
	defer timer.Stop()
	x.trace.GotConn, x.trace.GotFirstResponseByte = x.gotConn, x.gotFirstByte
	if p.request.URL.Scheme == "https" {
		x.trace.TLSHandshakeDone = x.shaken
	}

	token, authorization := "", p.authorization
	if p.shows.tokens != nil {
		var err error
		if token, authorization, err = p.shows.tokens.get(own); err != nil {
			switch {
			case ctx.Err() != nil:
				r.Verdict = inbox.VerdictRelease // nothing was sent
			case errors.Is(err, errTimeout):
				r.Class, r.Error = inbox.ClassToken, fmt.Sprintf("no token from %s within %v", p.shows.tokens.host, h.Timeout)
			default:
				var text string
				r.Class, text = p.shows.tokens.explain(err)
				r.Error = clip(text)
			}
			return
		}
	}

	req := p.request.WithContext(httptrace.WithClientTrace(own, &x.trace))
	req.Header = p.header(f.userAgent, source, r.Claim, m, started)
	p.shows.apply(req.Header, authorization)
	if len(m.Body) > 0 {
		req.ContentLength = int64(len(m.Body))
		req.Body = payload(m.Body)
		// Asked for only when nothing of the request was written, because a kept connection was closed.
		req.GetBody = func() (io.ReadCloser, error) { return payload(m.Body), nil }
	}

	resp, err := p.transport.RoundTrip(req)
	if err != nil {
		switch {
		case ctx.Err() != nil && !x.connected.Load():
			r.Verdict = inbox.VerdictRelease
		case ctx.Err() != nil:
			r.Class, r.Error = inbox.ClassConnection, "stopped while waiting for the answer; the handler may have got the message"
		case errors.Is(context.Cause(own), errTimeout):
			r.Class, r.Error = inbox.ClassTimeout, fmt.Sprintf("no answer within %v", h.Timeout)
			if !x.connected.Load() {
				r.Error = fmt.Sprintf("no connection within %v", h.Timeout)
			}
		default:
			var text string
			r.Class, text = x.classify(err)
			r.Error = clip(text)
		}
		return
	}

	timer.Reset(min(answerTime, h.Timeout-time.Since(started)))
	r.ResponseStatus = resp.StatusCode
	forgotten := false
	if tokens := p.shows.tokens; tokens != nil {
		if resp.StatusCode == http.StatusUnauthorized {
			forgotten = tokens.refused(token)
		} else {
			tokens.taken(token)
		}
	}
	if status := resp.StatusCode; status >= 200 && status <= 299 {
		r.Verdict = inbox.VerdictDone
		keep := 0
		if r.Message == pingMessage {
			keep = keptAnswer
		}
		r.ResponseBody = p.shows.mask(drain(resp, keep), token)
		return
	}
	r.ResponseBody = p.shows.mask(drain(resp, keptAnswer), token)
	judge(h, resp, r)
	if forgotten {
		r.Verdict = inbox.VerdictRetry // even if 401 is permanent: it may be the token alone
		r.Error += "; the next attempt gets a new token"
	}
}

// judge puts into r what an answer outside 2xx means.
func judge(h *inbox.Handler, resp *http.Response, r *inbox.Result) {
	r.Class, r.Error = inbox.ClassStatus, "answered "+strconv.Itoa(resp.StatusCode)
	if resp.StatusCode >= 300 && resp.StatusCode <= 399 {
		r.Class = inbox.ClassRedirect
		r.Error += "; redirects are not followed"
	}
	if slices.Contains(h.PermanentStatuses, resp.StatusCode) {
		r.Verdict = inbox.VerdictPermanent
		return
	}
	if resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable {
		r.Delay = retryAfter(resp.Header.Get("Retry-After"), time.Now())
	}
}

// retryAfter returns how long a Retry-After asks to wait, seconds or a date, RFC 9110 section 10.2.3; 0 if
// it is neither, or over.
func retryAfter(value string, now time.Time) time.Duration {
	if value != "" && strings.Trim(value, "0123456789") == "" {
		seconds, err := strconv.ParseInt(value, 10, 64)
		if err != nil || seconds > int64(math.MaxInt64/time.Second) {
			// More than fits: as long as can be.
			return math.MaxInt64
		}
		return time.Duration(seconds) * time.Second
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	return max(at.Sub(now), 0)
}

// drain reads an answer's body, so that its connection can be used again: up to keep bytes, which it returns,
// and some more. It gives up when the exchange's time is over, and closes the body.
func drain(resp *http.Response, keep int) []byte {
	defer resp.Body.Close()
	if resp.Body == http.NoBody || resp.StatusCode == http.StatusSwitchingProtocols {
		// After 101 the body is the connection itself, and reading it heeds no context.
		return nil
	}
	var kept []byte
	if keep > 0 {
		kept = make([]byte, keep)
		n, err := io.ReadFull(resp.Body, kept)
		kept = kept[:n]
		if err != nil {
			return kept
		}
	}
	_, _ = io.CopyN(io.Discard, resp.Body, drainLimit)
	return kept
}

// classify says why there was no answer. The text is put together from what is known to be harmless: an
// error of net/http may quote what came back, and that may be the URL or the message.
func (x *exchange) classify(err error) (inbox.Class, string) {
	if class, text, ok := explainDial(err); ok {
		return class, text
	}
	if failed := x.handshake.Load(); failed != nil {
		op, network := errors.AsType[*net.OpError](*failed)
		if network && strings.HasSuffix(op.Op, " error") {
			// "remote error" and "local error" are crypto/tls's for an alert received and sent.
			network = false
		}
		if timeout, ok := errors.AsType[net.Error](*failed); ok && timeout.Timeout() {
			network = true
		}
		if !network && !errors.Is(*failed, io.EOF) && !errors.Is(*failed, io.ErrUnexpectedEOF) {
			return inbox.ClassTLS, (*failed).Error()
		}
		return inbox.ClassConnection, "the connection broke during the TLS handshake"
	}
	if class, text, ok := explainNetwork(err); ok {
		return class, text
	}
	switch {
	case !x.connected.Load():
		return inbox.ClassConnection, "no connection"
	case x.answered.Load():
		return inbox.ClassConnection, "the answer broke off, or is no HTTP"
	}
	return inbox.ClassConnection, "the connection was closed before an answer"
}

// explainDial says why the dialer made no connection.
func explainDial(err error) (inbox.Class, string, bool) {
	if denied, ok := errors.AsType[*egress.DeniedError](err); ok {
		return inbox.ClassRefused, denied.Error(), true
	}
	if proxy, ok := errors.AsType[*egress.ProxyError](err); ok {
		return inbox.ClassConnection, proxy.Error(), true
	}
	return "", "", false
}

// explainNetwork says what went wrong between the resolver and the socket.
func explainNetwork(err error) (inbox.Class, string, bool) {
	if class, text, ok := explainDial(err); ok {
		return class, text, true
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		return inbox.ClassConnection, "lookup " + dns.Name + ": " + dns.Err, true
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		text := op.Op
		if op.Addr != nil {
			text += " " + op.Addr.String()
		}
		return inbox.ClassConnection, text + ": " + innermost(op).Error(), true
	}
	return "", "", false
}

// innermost returns the last error of a chain.
func innermost(err error) error {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err
		}
		err = inner
	}
}

// clip makes a text fit for Result.Error.
func clip(text string) string {
	text = strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
	if len(text) <= errorLimit {
		return text
	}
	end := errorLimit
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end]
}

// payload returns a request's body. It must be one of the types that net/http knows to be in memory: for
// others it writes the headers on their own first, which costs a system call and a packet.
func payload(body []byte) io.ReadCloser { return io.NopCloser(bytes.NewReader(body)) }

// prepared is what the attempts of a handler have in common.
type prepared struct {
	url     string         // what it was made of,
	secrets []inbox.Secret // as the handler has it
	faulty  bool           // whether it had a SecretFault

	credentials *inbox.Credentials

	request       http.Request // what each request is a copy of
	authorization string       // what doesn't change of it; "" if there is none
	shows         showing
	transport     *http.Transport // set by prepare, as is that of the tokens
	own           bool            // the transport is this handler's alone
	signers       []*signer
	err           error // why nothing can be sent to the handler
}

var errURL = errors.New("the handler's URL is not http or https with a host")

func (p *prepared) fits(h *inbox.Handler) bool {
	return p != nil && p.url == h.URL && p.faulty == (h.SecretFault != "") && slices.Equal(p.secrets, h.Secrets) &&
		p.credentials.Equal(h.Credentials)
}

// close closes the connections that are not in use and are this handler's alone.
func (p *prepared) close() {
	if p.own {
		p.transport.CloseIdleConnections()
	}
	if p.shows.tokens != nil && p.shows.tokens.roots != nil {
		p.shows.tokens.client.CloseIdleConnections()
	}
}

// prepare returns the handler's prepared, made anew when its URL, secrets or credentials have changed. It fails if
// they are not usable, with an error that shows none of them.
func (f *Forwarder) prepare(h *inbox.Handler) (*prepared, error) {
	f.mu.RLock()
	p := f.prepared[h.ID]
	f.mu.RUnlock()
	if p.fits(h) {
		return p, p.err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if p = f.prepared[h.ID]; p.fits(h) {
		return p, p.err // made meanwhile, perhaps with a token already
	}
	if p != nil {
		p.close()
	}
	p = newPrepared(h)
	p.transport = f.transport
	if p.own = p.shows.tls != nil; p.own {
		p.transport = f.newTransport(p.shows.tls)
	}
	if tokens := p.shows.tokens; tokens != nil {
		tokens.client = &http.Client{Transport: f.transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		if tokens.roots != nil {
			tokens.client.Transport = f.newTransport(&tls.Config{RootCAs: tokens.roots})
		}
	}
	if len(f.prepared) >= maxPrepared {
		// Handlers come and go; those that are still there are soon prepared again.
		for _, p := range f.prepared {
			p.close()
		}
		clear(f.prepared)
	}
	f.prepared[h.ID] = p
	return p, p.err
}

// Check returns why nothing could be sent to the handler with the URL, secrets and credentials that it has, or nil.
// The error shows none of them.
func Check(h *inbox.Handler) error { return newPrepared(h).err }

func newPrepared(h *inbox.Handler) *prepared {
	p := &prepared{url: h.URL, secrets: slices.Clone(h.Secrets), faulty: h.SecretFault != "", credentials: h.Credentials}
	u, err := url.Parse(h.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		p.err = errURL
		return p
	}
	if user := u.User; user != nil {
		password, _ := user.Password()
		p.authorization = "Basic " + base64.StdEncoding.EncodeToString([]byte(user.Username()+":"+password))
		u.User = nil
	}
	p.request = http.Request{
		Method: http.MethodPost, URL: u, Host: u.Host, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}
	if h.SecretFault != "" {
		p.err = errSecretFault
		return p
	}
	for _, secret := range h.Secrets {
		s, err := newSigner(secret)
		if err != nil {
			p.err = err
			return p
		}
		p.signers = append(p.signers, s)
	}
	if len(p.signers) == 0 {
		p.err = errSecret
		return p
	}
	if p.shows, p.err = newShowing(h.Credentials, u.Scheme); p.err == nil && p.shows.authorization != "" {
		p.authorization = p.shows.authorization
	}
	return p
}
