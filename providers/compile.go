package providers

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/inboxd/inboxd/inbox"
)

// lacks records a key that is missing, unless what is there has a mistake already.
func (r *reader) lacks(key, advice string) {
	if !slices.ContainsFunc(r.failed, func(failed string) bool {
		return failed == key || strings.HasPrefix(key, failed+".") || strings.HasPrefix(failed, key)
	}) {
		r.errs = append(r.errs, fmt.Errorf("settings: %s: %s", key, advice))
	}
}

// check finds what is missing or doesn't fit together.
func (s *spec) check(r *reader) {
	sig := &s.signature
	signs := sig.scheme == "hmac" || sig.scheme == "ed25519"
	switch {
	case sig.scheme == "":
		r.lacks("signature.scheme", "is missing")
	case sig.scheme != "none" && sig.in == nil:
		r.lacks("signature.in", "is missing: say where the signature stands, such as header:X-Signature")
	}
	if sig.scheme == "hmac" && sig.algorithm == "" {
		r.lacks("signature.algorithm", "is missing: "+strings.Join(slices.Sorted(maps.Keys(hashes)), ", "))
	}
	if signs && sig.key == "" {
		r.lacks("signature.key", "is missing: say how a secret becomes the key")
	}
	if signs && sig.encoding == "" {
		r.lacks("signature.encoding", "is missing")
	}
	if p := sig.pairs; p.name != "" && (p.between == "" || p.within == "") {
		r.lacks("signature.pairs", "needs between, within and name")
	}
	inBodyPlace := func(p place) bool { return p.kind == inBody }
	if signs && !s.signed.has(inBodyPlace) {
		r.lacks("signed", "must contain {body}: else a signature that was seen once fits any body")
	}
	if s.signed.has(func(p place) bool { return p.kind == inPair }) && sig.pairs.name == "" {
		r.lacks("signed", "has a pair, but the signature is not made of pairs")
	}
	if ts := &s.timestamp; ts.in != nil {
		if ts.unit == "" {
			r.lacks("timestamp.unit", "is missing: "+strings.Join(unitNames(), ", "))
		}
		if ts.tolerance == 0 {
			r.lacks("timestamp.tolerance", "is missing: say how far the time may be off, such as 5m")
		}
		if !s.signed.has(func(p place) bool { return p.kind == ts.in.kind && p.name == ts.in.name }) {
			r.lacks("timestamp.in", "must be part of signed: else anyone can put a fresh time on an old request")
		}
	} else if ts.unit != "" || ts.tolerance != 0 {
		r.lacks("timestamp", "unit and tolerance mean nothing without in, the place of the time")
	}

	if len(s.messageID) == 0 {
		r.lacks("message_id", "is missing: say where the id stands, such as {json:id} or {header:X-Id}; {body_hash} if the provider sends none")
	}
	if s.items != nil {
		for _, t := range s.messageID {
			if !t.has(func(p place) bool { return p.kind == inJSON || p.kind == inBodyHash }) {
				r.lacks("message_id", "must contain a json place or body_hash: else all items of a request are one message")
			}
		}
	}
	if (len(s.bizKey.types) == 0) != (len(s.bizKey.from) == 0) {
		r.lacks("biz_key", "needs types (which are once-only) and from (what makes the key)")
	}
	if (len(s.eventTime.from) == 0) != (s.eventTime.unit == "") {
		r.lacks("event_time", "needs from and unit")
	}
}

// compile turns the spec into a verifier. It has mistakes only if r has.
func (s *spec) compile(r *reader, secrets []inbox.Secret) *Verifier {
	v := &Verifier{spec: *s}
	v.scheme = s.compileScheme(r, secrets)
	if len(r.errs) > 0 {
		return nil
	}
	v.calls.New = func() any { return &call{} }
	if v.scheme != nil {
		v.authentic = s.compileAuthentic(v.scheme)
	}
	for _, req := range s.require {
		v.required = append(v.required, req.compile())
	}
	if s.items != nil {
		v.array = &plan{}
		v.inArray = v.array.add(s.items.path)
	}
	v.id = firstUsable(s.messageID, template.compileKey, &v.wanted)
	v.kind = firstUsable(s.messageType, template.compile, &v.wanted)
	v.order = firstUsable(s.orderingKey, template.compileKey, &v.wanted)
	v.bizKey = firstUsable(s.bizKey.from, template.compileKey, &v.wanted)
	v.occurred = s.eventTime.compile(&v.wanted)
	return v
}

// compileScheme turns the secrets into keys. It returns nil for the scheme none.
func (s *spec) compileScheme(r *reader, secrets []inbox.Secret) scheme {
	fail := func(format string, args ...any) { r.errs = append(r.errs, fmt.Errorf(format, args...)) }
	if s.signature.scheme == "none" {
		if len(secrets) > 0 {
			fail("secrets: the provider none verifies nothing: choose another one or take the secrets away")
		}
		return nil
	}
	if len(secrets) == 0 {
		fail("secrets: there is none: enter the one that the provider shows; without it anyone could send")
	}
	var texts []string
	for i, secret := range secrets {
		if secret.Blank() {
			fail("secrets: number %d is empty", i+1)
			continue
		}
		// White space comes with copying, never from a provider.
		texts = append(texts, strings.TrimSpace(secret.Reveal()))
	}

	switch s.signature.scheme {
	case "hmac":
		parse := hmacKeys[s.signature.key]
		if parse == nil {
			if s.signature.key != "" {
				fail("signature.key: %s is no key of an HMAC", s.signature.key)
			}
			return nil
		}
		keys := parseKeys(fail, texts, parse)
		if len(r.errs) > 0 {
			return nil
		}
		return newHMAC(hashes[s.signature.algorithm], keys, s.signed.compileSigned())
	case "ed25519":
		parse := ed25519Keys[s.signature.key]
		if parse == nil {
			if s.signature.key != "" {
				fail("signature.key: %s is no key of Ed25519", s.signature.key)
			}
			return nil
		}
		keys := parseKeys(fail, texts, parse)
		if len(r.errs) > 0 {
			return nil
		}
		return &ed25519Scheme{signed: s.signed.compileSigned(), keys: keys}
	case "token":
		scheme := &tokenScheme{}
		for _, text := range texts {
			scheme.tokens = append(scheme.tokens, []byte(text))
		}
		return scheme
	}
	return nil
}

func parseKeys[K any](fail func(string, ...any), secrets []string, parse func(string) (K, error)) []K {
	var keys []K
	for i, secret := range secrets {
		key, err := parse(secret)
		if err != nil {
			fail("secrets: number %d %w", i+1, err)
			continue
		}
		keys = append(keys, key)
	}
	return keys
}

// compileAuthentic returns the check of signature and timestamp.
func (s *spec) compileAuthentic(scheme scheme) func(*call) Reason {
	candidates := s.signature.compile()
	fresh := s.timestamp.compile()
	return func(c *call) Reason {
		if reason := candidates(c); reason != "" {
			return reason
		}
		// Before the signature, since it costs less.
		if reason := fresh(c); reason != "" {
			return reason
		}
		return scheme.matches(c)
	}
}

// compile returns how to find the request's signatures and to decode them into c.candidates.
func (s *signatureSpec) compile() func(*call) Reason {
	in, decode := *s.in, encodings[s.encoding].decode
	add := func(c *call, text string) bool {
		text, ok := strings.CutPrefix(text, s.prefix)
		if !ok || text == "" {
			return true
		}
		n := len(c.candidates)
		if n == maxCandidates {
			return false
		}
		// Takes the memory of an earlier request's candidate.
		c.candidates = slices.Grow(c.candidates, 1)[:n+1]
		if c.candidates[n], ok = decode(c, c.candidates[n][:0], text); !ok {
			c.candidates = c.candidates[:n]
		}
		return true
	}
	return func(c *call) Reason {
		var lines []string
		if in.kind == inHeader {
			lines = c.req.Header[in.name]
		} else {
			c.parameter(in.name)
			lines = c.query[in.name]
		}
		switch {
		case len(lines) == 0 || len(lines) == 1 && lines[0] == "":
			return NoSignature
		case len(lines) > 1:
			// Taking any of them would let a sender try many; taking the first is not what every proxy does.
			return MalformedSignature
		}
		found := s.pairs.name == ""
		if found {
			add(c, lines[0])
		} else {
			var ok bool
			if c.pairs, ok = s.pairs.parse(c.pairs, lines[0]); !ok {
				return MalformedSignature
			}
			for _, p := range c.pairs {
				if p.name == s.pairs.name {
					found = true
					if !add(c, p.value) {
						return MalformedSignature
					}
				}
			}
		}
		switch {
		case !found:
			return NoSignature
		case len(c.candidates) == 0:
			return MalformedSignature
		}
		return ""
	}
}

// compile returns the check that the request's time is within the tolerance.
func (s *timestampSpec) compile() func(*call) Reason {
	if s.in == nil {
		return func(*call) Reason { return "" }
	}
	read, parse, tolerance := s.in.compile(nil), units[s.unit], s.tolerance
	return func(c *call) Reason {
		text, ok := read(c)
		if !ok {
			return TimestampMissing
		}
		t, ok := parse(text)
		if !ok {
			return TimestampMalformed
		}
		switch age := c.req.Now.Sub(t); {
		case age > tolerance:
			return TimestampTooOld
		case age < -tolerance:
			return TimestampTooNew
		}
		return ""
	}
}

func (r *requirement) compile() func(*call) bool {
	value := r.value.compile(nil)
	if r.equals == nil {
		return func(c *call) bool {
			text, ok := value(c)
			return ok && !strings.Contains(text, r.without)
		}
	}
	equals := r.equals.compile(nil)
	return func(c *call) bool {
		a, ok := value(c)
		b, too := equals(c)
		return ok && too && a == b
	}
}

// compile returns how to read the time of the event, zero if there is none that can be stored.
func (s *eventTimeSpec) compile(wanted *plan) func(*call) time.Time {
	if len(s.from) == 0 {
		return func(*call) time.Time { return time.Time{} }
	}
	read, parse := firstUsable(s.from, template.compile, wanted), units[s.unit]
	return func(c *call) time.Time {
		text, ok := read(c)
		if !ok {
			return time.Time{}
		}
		t, ok := parse(text)
		if !ok {
			return time.Time{}
		}
		return t
	}
}
