package providers

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Draft says what Sign makes a request of.
type Draft struct {
	Path        string    // of the source's URL
	Body        []byte    // nil takes the sheet's sample
	MessageID   string    // fills the sample; "" makes a fresh one
	MessageType string    // fills the sample; "" takes the sheet's
	Now         time.Time // when the request is signed
	Forge       bool      // sign with a key that the source doesn't have
}

// Sign makes a request as the provider would send it, signed with the source's first secret. Unless it is
// forged, Verify accepts it.
func (v *Verifier) Sign(d Draft) (*Request, error) {
	r := v.draw(d)
	if v.scheme == nil {
		if d.Forge {
			return nil, errors.New("the provider none verifies nothing: there is nothing to forge")
		}
	} else if err := v.sign(r, d.Forge); err != nil {
		return nil, err
	}
	if !d.Forge {
		if _, err := v.Verify(r); err != nil {
			return nil, fmt.Errorf("the source would refuse it: set sample, or give a body, so that it has what the settings name: %w", err)
		}
	}
	return r, nil
}

// draw fills the sample in.
func (v *Verifier) draw(d Draft) *Request {
	id, kind := d.MessageID, d.MessageType
	if id == "" {
		id = rand.Text()
	}
	if kind == "" {
		kind = v.spec.sample.messageType
	}
	fill := func(text string, quote func(string) string) string {
		return strings.NewReplacer(
			"$id", quote(id),
			"$type", quote(kind),
			"$time", d.Now.UTC().Format(time.RFC3339),
			"$unix", strconv.FormatInt(d.Now.Unix(), 10),
			"$path", quote(d.Path),
		).Replace(text)
	}

	r := &Request{Method: http.MethodPost, Path: d.Path, Header: http.Header{}, Body: d.Body, Now: d.Now}
	r.Header.Set("Content-Type", v.spec.sample.contentType)
	for name, value := range v.spec.sample.headers {
		r.Header.Set(name, fill(value, func(s string) string { return s }))
	}
	if r.Body == nil {
		r.Body = []byte(fill(v.spec.sample.body, quoteInside))
	}
	return r
}

// quoteInside returns the text as it stands between the quotes of a JSON string.
func quoteInside(text string) string {
	var quoted bytes.Buffer
	enc := json.NewEncoder(&quoted)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(text) // a string in a buffer
	return strings.TrimSuffix(strings.TrimPrefix(quoted.String(), `"`), "\"\n")
}

// sign puts the timestamp and the signature where the source looks for them.
func (v *Verifier) sign(r *Request, forged bool) error {
	c := &call{req: r}
	set := func(p place, text string) {
		switch p.kind {
		case inHeader:
			r.Header.Set(p.name, text)
		case inQuery:
			query, _ := url.ParseQuery(r.RawQuery)
			query.Set(p.name, text)
			r.RawQuery = query.Encode()
		case inPair:
			c.pairs = append(c.pairs, pair{p.name, text})
		}
	}

	if ts := v.spec.timestamp; ts.in != nil {
		set(*ts.in, formatTime(r.Now, ts.unit))
	}
	sum, err := v.scheme.sign(c, forged)
	if err != nil {
		return err
	}
	sig := v.spec.signature
	text := sig.prefix + encodings[sig.encoding].encode(sum)
	if sig.pairs.name != "" {
		var items []string
		for _, p := range append(c.pairs, pair{sig.pairs.name, text}) {
			items = append(items, p.name+sig.pairs.within+p.value)
		}
		text = strings.Join(items, sig.pairs.between)
	}
	set(*sig.in, text)
	return nil
}

func formatTime(t time.Time, unit string) string {
	switch unit {
	case "s":
		return strconv.FormatInt(t.Unix(), 10)
	case "ms":
		return strconv.FormatInt(t.UnixMilli(), 10)
	}
	return t.UTC().Format(time.RFC1123Z)
}
