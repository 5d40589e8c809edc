package providers

import (
	"net/http"
	"path"
	"slices"
	"sync"
	"time"
)

// Request is a webhook request as it came.
type Request struct {
	Method   string
	Path     string // of the URL, still escaped (url.URL.EscapedPath)
	RawQuery string
	Header   http.Header // its names in canonical form, as net/http has them
	Body     []byte      // the exact bytes, still compressed if they were
	Now      time.Time   // when it came
}

// Item is one message of a request.
type Item struct {
	MessageID   string // 1 to 512 bytes of UTF-8 without NUL, as are the others where they are not ""
	MessageType string
	BizKey      string
	OrderingKey string
	EventTime   time.Time // zero if the provider doesn't say
	Body        []byte    // the exact bytes: the request's body or, if it brings several messages, a part of it
	Secret      int       // which of the source's secrets verified it; -1 if nothing was verified
}

// Answer is what a provider wants to read when its request has been stored, the first time and again.
type Answer struct {
	Status      int
	ContentType string
	Body        []byte
}

// Reason says why a request is refused. The set is small and fixed, so it can label a metric.
type Reason string

// The reasons.
const (
	NoSignature        Reason = "no_signature"
	MalformedSignature Reason = "malformed_signature" // or it is given twice
	SignedPartMissing  Reason = "signed_part_missing" // something else that the signature covers is missing
	TimestampMissing   Reason = "timestamp_missing"
	TimestampMalformed Reason = "timestamp_malformed"
	TimestampTooOld    Reason = "timestamp_too_old"
	TimestampTooNew    Reason = "timestamp_too_new"
	SignatureMismatch  Reason = "signature_mismatch"
	RequirementFailed  Reason = "requirement_failed" // well signed, but not what the provider sends
	MalformedBody      Reason = "malformed_body"     // genuine, but it isn't the JSON in which the id stands
	NoMessageID        Reason = "no_message_id"      // genuine, but its id is missing or can't be one
)

// Genuine reports whether the request passed every check of who sent it: what is wrong is its content.
func (r Reason) Genuine() bool { return r == MalformedBody || r == NoMessageID }

// RejectError refuses a request. It tells neither the expected signature nor anything of the request.
type RejectError struct{ Reason Reason }

// Error names the reason.
func (e *RejectError) Error() string { return "request refused: " + string(e.Reason) }

// Verifier checks the requests of one source and splits them into messages. It is safe for concurrent use.
type Verifier struct {
	spec  spec
	calls sync.Pool // of *call

	// authentic checks who sent the request; nil if the source is of the provider none.
	authentic func(*call) Reason
	scheme    scheme
	required  []func(*call) bool

	array    *plan // of a body that is split, else nil
	inArray  int   // the array's slot
	wanted   plan  // of a message's body
	id       reading
	kind     reading
	order    reading
	bizKey   reading
	occurred func(*call) time.Time
}

// Verify returns the messages of a genuine request, one or more. Every refusal is a *RejectError.
func (v *Verifier) Verify(r *Request) ([]Item, error) {
	c := v.calls.Get().(*call)
	c.req = r
	items, reason := v.verify(c)
	c.reset()
	v.calls.Put(c)
	if reason != "" {
		return nil, &RejectError{reason}
	}
	return items, nil
}

func (v *Verifier) verify(c *call) ([]Item, Reason) {
	if v.authentic != nil {
		if reason := v.authentic(c); reason != "" {
			return nil, reason
		}
	}
	for _, holds := range v.required {
		if !holds(c) {
			return nil, RequirementFailed
		}
	}

	bodies := [][]byte{c.req.Body}
	if v.array != nil {
		found := make([]value, v.array.slots())
		if !v.array.scan(c.req.Body, found) || found[v.inArray].kind != valueArray {
			return nil, MalformedBody
		}
		bodies = elements(found[v.inArray].raw)
		if len(bodies) == 0 {
			// A 2xx says that something was stored.
			return nil, MalformedBody
		}
	}
	secret := -1
	if v.authentic != nil {
		secret = c.key
	}
	items := make([]Item, len(bodies))
	for i, body := range bodies {
		c.setBody(body)
		id, ok := v.id(c)
		if !ok {
			if c.scanned && !c.valid {
				return nil, MalformedBody
			}
			return nil, NoMessageID
		}
		items[i] = Item{MessageID: id, Body: body, EventTime: v.occurred(c), Secret: secret}
		items[i].MessageType, _ = v.kind(c)
		items[i].OrderingKey, _ = v.order(c)
		if v.isOnceOnly(items[i].MessageType) {
			items[i].BizKey, _ = v.bizKey(c)
		}
	}
	return items, ""
}

// isOnceOnly reports whether messages of the type have a business key.
func (v *Verifier) isOnceOnly(messageType string) bool {
	return slices.ContainsFunc(v.spec.bizKey.types, func(glob string) bool {
		ok, _ := path.Match(glob, messageType) // globs are checked when they are read
		return ok || glob == "*"
	})
}

// Answer returns what the provider is told once its request is stored.
func (v *Verifier) Answer() Answer { return v.spec.answer }
