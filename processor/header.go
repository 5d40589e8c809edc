package processor

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"time"

	"github.com/inboxd/inboxd/inbox"
)

// The headers that inboxd sets itself, in the form that http.Header has them.
const (
	headerWebhookID        = "Webhook-Id"
	headerWebhookTimestamp = "Webhook-Timestamp"
	headerWebhookSignature = "Webhook-Signature"
	headerSource           = "Inbox-Source"
	headerMessageID        = "Inbox-Message-Id"
	headerMessageType      = "Inbox-Message-Type"
	headerBizKey           = "Inbox-Biz-Key"
	headerAttempt          = "Inbox-Attempt"
	headerFence            = "Inbox-Fence"
	headerReplay           = "Inbox-Replay"
	headerTest             = "Inbox-Test"
	headerTraceparent      = "Traceparent"
	headerTracestate       = "Tracestate"

	ownPrefix      = "Inbox-"
	originalPrefix = "Inbox-Original-"

	ownHeaders = 15 // at most so many in one request
)

// relayed says what becomes of a provider's header that is not passed on under its name: "" drops it.
// Names that begin with Inbox- get originalPrefix, the rest is passed on as it is.
var relayed = map[string]string{
	// Hop-by-hop, RFC 9110 section 7.6.1, and what the transport sets itself.
	"Connection": "", "Keep-Alive": "", "Proxy-Connection": "", "Te": "", "Trailer": "",
	"Transfer-Encoding": "", "Upgrade": "", "Http2-Settings": "", "Expect": "",
	"Host": "", "Content-Length": "",

	// Credentials for inboxd, not for the handler.
	"Authorization": "", "Proxy-Authorization": "", "Proxy-Authenticate": "", "Cookie": "", "Cookie2": "",
	"Set-Cookie": "", "Set-Cookie2": "",

	// inboxd's own. An answer goes to inboxd, so what the provider accepts doesn't matter, and gzip would
	// only make a failure's answer unreadable.
	"Content-Type": "", "Accept-Encoding": "", headerTraceparent: "", headerTracestate: "",
	"User-Agent": originalPrefix + "User-Agent",

	// A provider may speak Standard Webhooks too. A handler that checks the provider's signature finds
	// its three headers here.
	headerWebhookID:        originalPrefix + headerWebhookID,
	headerWebhookTimestamp: originalPrefix + headerWebhookTimestamp,
	headerWebhookSignature: originalPrefix + headerWebhookSignature,

	// By these names, spelled so, http.Transport takes a POST for one that it may send twice on its own.
	// One attempt is one request.
	"Idempotency-Key": "idempotency-key", "X-Idempotency-Key": "x-idempotency-key",
}

// fields builds an http.Header with one allocation for all single values.
type fields struct {
	header http.Header
	values []string
}

// add adds a value, unless http.Transport would refuse the request for it.
func (f *fields) add(name, value string) {
	if value = strings.Trim(value, " \t"); !validValue(value) {
		return
	}
	if old, ok := f.header[name]; ok {
		f.header[name] = append(old, value)
		return
	}
	f.values = append(f.values, value)
	n := len(f.values)
	f.header[name] = f.values[n-1 : n : n]
}

// addOwn is add for a value that may be absent.
func (f *fields) addOwn(name, value string) {
	if value != "" {
		f.add(name, value)
	}
}

// header returns the headers of one attempt at now.
func (p *prepared) header(userAgent, source string, c inbox.Claim, m *inbox.Message, now time.Time) http.Header {
	n := bytes.Count(m.Headers, []byte{'\n'}) + ownHeaders
	f := fields{header: make(http.Header, n), values: make([]string, 0, n)}
	traceparent, tracestate := f.relay(string(m.Headers))

	// All generated values share one string.
	buf := make([]byte, 0, 192+64*len(p.signers))
	buf = strconv.AppendInt(append(buf, "msg_"...), c.Message, 10)
	id := len(buf)
	buf = strconv.AppendInt(append(buf, '.'), now.Unix(), 10)
	timestamp := len(buf)
	buf = append(buf, '.')
	head := len(buf)
	buf = sign(buf, p.signers, buf, m.Body)
	signature := len(buf)
	buf = strconv.AppendInt(buf, int64(c.RetryCount)+1, 10)
	attempt := len(buf)
	buf = strconv.AppendInt(buf, c.ClaimSeq, 10)
	fence := len(buf)
	buf = strconv.AppendInt(buf, int64(c.ReplayNo), 10)
	replay := len(buf)
	buf, kept := appendTraceparent(buf, traceparent)
	text := string(buf)

	f.add(headerWebhookID, text[:id])
	f.add(headerWebhookTimestamp, text[id+1:timestamp])
	f.add(headerWebhookSignature, text[head:signature])
	f.add(headerAttempt, text[signature:attempt])
	f.add(headerFence, text[attempt:fence])
	f.add(headerReplay, text[fence:replay])
	f.add(headerTraceparent, text[replay:])
	if kept {
		for _, value := range tracestate {
			f.add(headerTracestate, value)
		}
	}
	if c.Message == pingMessage {
		f.add(headerTest, "1")
	}
	f.addOwn(headerSource, source)
	f.addOwn(headerMessageID, m.MessageID)
	f.addOwn(headerMessageType, m.MessageType)
	f.addOwn(headerBizKey, m.BizKey)
	f.addOwn("Content-Type", m.ContentType)
	f.add("User-Agent", userAgent)
	return f.header
}

// relay adds the provider's headers, lines "Name: value\r\n", and returns its trace context apart.
func (f *fields) relay(lines string) (traceparent, tracestate []string) {
	var connection []string
	for line := range strings.Lines(lines) {
		name, value, ok := strings.Cut(strings.TrimRight(line, "\r\n"), ":")
		if !ok || !validName(name) {
			continue
		}
		name = textproto.CanonicalMIMEHeaderKey(name)
		switch name {
		case "Connection":
			connection = append(connection, strings.Split(value, ",")...)
			continue
		case headerTraceparent:
			traceparent = append(traceparent, strings.Trim(value, " \t"))
			continue
		case headerTracestate:
			tracestate = append(tracestate, value)
			continue
		}
		if looksOwn(name) {
			continue
		}
		if to, ok := relayed[name]; ok {
			name = to
		} else if strings.HasPrefix(name, ownPrefix) {
			name = originalPrefix + name
		}
		if name != "" {
			f.add(name, value)
		}
	}
	// RFC 9110 section 7.6.1: what Connection names is for this hop as well.
	for _, name := range connection {
		delete(f.header, textproto.CanonicalMIMEHeaderKey(strings.Trim(name, " \t")))
	}
	return traceparent, tracestate
}

// looksOwn reports whether a header is no reserved one and yet becomes one at a handler behind CGI, WSGI
// or the like, to which Inbox_Fence and Inbox-Fence are both HTTP_INBOX_FENCE.
func looksOwn(name string) bool {
	odd := func(r rune) bool {
		return r != '-' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	}
	if !strings.ContainsFunc(name, odd) {
		return false
	}
	name = textproto.CanonicalMIMEHeaderKey(strings.Map(func(r rune) rune {
		if odd(r) {
			return '-'
		}
		return r
	}, name))
	_, reserved := relayed[name]
	return reserved || strings.HasPrefix(name, ownPrefix)
}

// appendTraceparent appends a W3C traceparent (https://www.w3.org/TR/trace-context/#traceparent-header)
// with a new span id. It keeps the trace id and the sampled flag of what was received, if that is one
// valid header; else it begins a trace, as sampled: a tracer that follows its parent, which is the
// default of OpenTelemetry, would record nothing otherwise.
func appendTraceparent(dst []byte, received []string) (_ []byte, kept bool) {
	var random [24]byte
	for i := 0; i < len(random); i += 8 {
		// Never all zero, which would be invalid.
		binary.BigEndian.PutUint64(random[i:], rand.Uint64()|1)
	}
	dst = append(dst, "00-"...)
	flags := byte(1)
	if len(received) == 1 && validTraceparent(received[0]) {
		kept = true
		dst = append(dst, received[0][3:35]...)
		// The hexadecimal digit's lowest bit is that of its character in 0-9, and the opposite in a-f.
		digit := received[0][54]
		if flags = digit & 1; digit >= 'a' {
			flags ^= 1
		}
	} else {
		dst = hex.AppendEncode(dst, random[8:])
	}
	dst = append(dst, '-')
	dst = hex.AppendEncode(dst, random[:8])
	return append(dst, '-', '0', '0'+flags), kept
}

// validTraceparent reports whether s is a traceparent of version 00, or of a later one that begins like
// it, as the specification asks for.
func validTraceparent(s string) bool {
	const length = len("00-") + 32 + len("-") + 16 + len("-00")
	if len(s) < length || s[2] != '-' || s[35] != '-' || s[52] != '-' {
		return false
	}
	version, trace, span, flags := s[:2], s[3:35], s[36:52], s[53:55]
	for _, part := range []string{version, trace, span, flags} {
		if strings.Trim(part, "0123456789abcdef") != "" {
			return false
		}
	}
	if version == "ff" || strings.Trim(trace, "0") == "" || strings.Trim(span, "0") == "" {
		return false
	}
	return len(s) == length || version != "00" && s[length] == '-'
}

// validName reports whether name is a token, RFC 9110 section 5.6.2.
func validName(name string) bool {
	for i := range len(name) {
		switch c := name[i]; {
		case '0' <= c && c <= '9', 'A' <= c && c <= 'Z', 'a' <= c && c <= 'z':
		case strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0:
		default:
			return false
		}
	}
	return name != ""
}

// validValue reports whether http.Transport sends the value: it has no control character but tab, RFC
// 9110 section 5.5. Bytes from 0x80 on are fine, UTF-8 or not.
func validValue(value string) bool {
	for i := range len(value) {
		if c := value[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}
