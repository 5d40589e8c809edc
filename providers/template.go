package providers

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

type placeKind string

const (
	inHeader   placeKind = "header"
	inQuery    placeKind = "query"
	inJSON     placeKind = "json"
	inPair     placeKind = "pair"
	inBody     placeKind = "body"
	inBodyHash placeKind = "body_hash"
	inMethod   placeKind = "method"
	inPath     placeKind = "path"
)

// What may stand where. A message's id is never made of what all messages share, such as the method.
var (
	signaturePlaces = []placeKind{inHeader, inQuery}
	timestampPlaces = []placeKind{inHeader, inQuery, inPair}
	signedPlaces    = []placeKind{inHeader, inQuery, inPair, inBody, inMethod, inPath}
	requiredPlaces  = []placeKind{inHeader, inQuery, inMethod, inPath}
	identityPlaces  = []placeKind{inHeader, inQuery, inJSON, inBodyHash}
	itemsPlaces     = []placeKind{inJSON}
)

// place is where a request holds a text.
type place struct {
	kind placeKind
	name string // a header's name in canonical form
	path []step // of kind json; empty is the whole document
}

func (p place) String() string {
	if p.name == "" {
		return string(p.kind)
	}
	return string(p.kind) + ":" + p.name
}

var headerName = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// parsePlace reads kind:name.
func parsePlace(text string, allowed []placeKind) (place, error) {
	kind, name, named := strings.Cut(text, ":")
	p := place{kind: placeKind(kind), name: name}
	if !slices.Contains(allowed, p.kind) {
		return place{}, fmt.Errorf("a place of kind %s is expected", oneOf(allowed))
	}
	switch p.kind {
	case inHeader, inQuery, inPair, inJSON:
		if name == "" {
			return place{}, fmt.Errorf("%s needs a name: %s:name", kind, kind)
		}
	default:
		if named {
			return place{}, fmt.Errorf("%s takes no name", kind)
		}
	}
	switch p.kind {
	case inHeader:
		if !headerName.MatchString(name) {
			return place{}, errors.New("is not the name of a header")
		}
		p.name = http.CanonicalHeaderKey(name)
	case inJSON:
		if name == "$" {
			break
		}
		var err error
		if p.path, err = parsePath(name); err != nil {
			return place{}, err
		}
	}
	return p, nil
}

// oneOf lists words for a message.
func oneOf[T ~string](words []T) string {
	list := make([]string, len(words))
	for i, word := range words {
		list[i] = string(word)
	}
	return strings.Join(list, ", ")
}

// template is a text with places in it.
type template []part

// part is a text or, if that is empty, a place.
type part struct {
	text  string
	place place
}

// parseTemplate reads text with {places}.
func parseTemplate(text string, allowed []placeKind) (template, error) {
	var t template
	for rest := text; rest != ""; {
		literal, after, open := strings.Cut(rest, "{")
		if strings.Contains(literal, "}") {
			return nil, errors.New("has a } without its {")
		}
		if literal != "" {
			t = append(t, part{text: literal})
		}
		if !open {
			break
		}
		inside, after, closed := strings.Cut(after, "}")
		if !closed {
			return nil, errors.New("has a { without its }")
		}
		p, err := parsePlace(inside, allowed)
		if err != nil {
			return nil, fmt.Errorf("{%s}: %w", inside, err)
		}
		t = append(t, part{place: p})
		rest = after
	}
	if len(t) == 0 {
		return nil, errors.New("is empty")
	}
	return t, nil
}

// has reports whether one of the template's places satisfies the condition.
func (t template) has(condition func(place) bool) bool {
	return slices.ContainsFunc(t, func(p part) bool { return p.text == "" && condition(p.place) })
}

// call is the state of one Verify. A Verifier keeps used ones, so that a request costs few allocations.
type call struct {
	req *Request

	query       url.Values // of req.RawQuery, once queryParsed
	queryParsed bool

	pairs      []pair   // of the signature's place
	candidates [][]byte // the request's signatures, decoded
	key        int      // which key fits one of them, once matches says so
	sum        []byte   // the signature that one key makes
	scratch    []byte

	body    []byte  // what json and body_hash mean: the request's body or one item of it
	values  []value // of the body, once scanned
	scanned bool
	valid   bool // the body is JSON; known once scanned
}

// setBody makes json and body_hash mean body.
func (c *call) setBody(body []byte) {
	c.body, c.scanned, c.valid = body, false, false
}

// reset drops what refers to the request.
func (c *call) reset() {
	clear(c.pairs)
	clear(c.values)
	*c = call{
		pairs: c.pairs[:0], candidates: c.candidates[:0], sum: c.sum[:0], scratch: c.scratch[:0], values: c.values,
	}
}

// header returns a header that occurs once. Of a repeated one, different readers take different lines.
func (c *call) header(name string) (string, bool) {
	lines := c.req.Header[name]
	if len(lines) != 1 {
		return "", false
	}
	return lines[0], lines[0] != ""
}

// parameter returns a parameter of the query that occurs once.
func (c *call) parameter(name string) (string, bool) {
	if !c.queryParsed {
		// What can't be parsed is left out.
		c.query, _ = url.ParseQuery(c.req.RawQuery)
		c.queryParsed = true
	}
	values := c.query[name]
	if len(values) != 1 {
		return "", false
	}
	return values[0], values[0] != ""
}

// pair returns the value of a pair that occurs once.
func (c *call) pair(name string) (string, bool) {
	value, found := "", false
	for _, p := range c.pairs {
		if p.name == name {
			if found {
				return "", false
			}
			value, found = p.value, true
		}
	}
	return value, value != ""
}

// json returns a wanted value of the body.
func (c *call) json(wanted *plan, slot int) value {
	if !c.scanned {
		if c.values == nil {
			c.values = make([]value, wanted.slots())
		}
		c.valid = wanted.scan(c.body, c.values)
		c.scanned = true
	}
	return c.values[slot]
}

// reading gives the text of a place or template in a request, or false if it holds nothing.
type reading func(*call) (string, bool)

// compile returns how to read the place. JSON values are added to wanted.
func (p place) compile(wanted *plan) reading {
	switch p.kind {
	case inHeader:
		return func(c *call) (string, bool) { return c.header(p.name) }
	case inQuery:
		return func(c *call) (string, bool) { return c.parameter(p.name) }
	case inPair:
		return func(c *call) (string, bool) { return c.pair(p.name) }
	case inMethod:
		return func(c *call) (string, bool) { return c.req.Method, true }
	case inPath:
		return func(c *call) (string, bool) { return c.req.Path, true }
	case inBodyHash:
		return func(c *call) (string, bool) {
			sum := sha256.Sum256(c.body)
			return "body:" + hex.EncodeToString(sum[:]), true
		}
	case inJSON:
		slot := wanted.add(p.path)
		return func(c *call) (string, bool) {
			text, ok := c.json(wanted, slot).text()
			return text, ok && text != ""
		}
	}
	panic("providers: a place of kind " + string(p.kind) + " has no text")
}

// compile returns how to read the template.
func (t template) compile(wanted *plan) reading {
	readings := make([]reading, len(t))
	for i, part := range t {
		if part.text != "" {
			readings[i] = func(*call) (string, bool) { return part.text, true }
		} else {
			readings[i] = part.place.compile(wanted)
		}
	}
	return join(readings)
}

// compileKey is compile for a template whose text says that two messages are the same. Equal texts must
// come from equal parts: a boolean alone, which strangers share, holds nothing, and neither does a place
// whose text contains the separator behind it ("a:b" and "c" would read as "a" and "b:c").
func (t template) compileKey(wanted *plan) reading {
	readings := make([]reading, len(t))
	for i, part := range t {
		if part.text != "" {
			readings[i] = func(*call) (string, bool) { return part.text, true }
			continue
		}
		read := part.place.compile(wanted)
		readings[i] = read
		if len(t) == 1 && part.place.kind == inJSON {
			slot := wanted.add(part.place.path)
			readings[i] = func(c *call) (string, bool) {
				if c.json(wanted, slot).kind == valueBool {
					return "", false
				}
				return read(c)
			}
		}
		if i+1 < len(t) {
			separator := t[i+1].text
			readings[i] = func(c *call) (string, bool) {
				text, ok := read(c)
				return text, ok && !strings.Contains(text, separator)
			}
		}
	}
	return join(readings)
}

// identifies reports why the template can't tell messages apart, or nil.
func (t template) identifies() error {
	if !t.has(func(place) bool { return true }) {
		return errors.New("must contain a place: a fixed text would make all messages one")
	}
	for i := range t[1:] {
		if t[i].text == "" && t[i+1].text == "" {
			return errors.New("needs a text between two places: without it different parts can read the same")
		}
	}
	return nil
}

// join reads one after the other, and holds nothing if one of them does.
func join(readings []reading) reading {
	if len(readings) == 1 {
		return readings[0]
	}
	return func(c *call) (string, bool) {
		var text strings.Builder
		for _, read := range readings {
			s, ok := read(c)
			if !ok {
				return "", false
			}
			text.WriteString(s)
		}
		return text.String(), true
	}
}

// maxKey is how many bytes the database takes of an id, a type or a key.
const maxKey = 512

// usable reports whether the text can be stored as it is. It is never cut or mended, which could make two
// different ids equal.
func usable(text string) bool {
	return len(text) <= maxKey && strings.TrimSpace(text) != "" && !strings.Contains(text, "\x00") && utf8.ValidString(text)
}

// firstUsable reads the first that holds something usable. How a template is compiled is for the caller to
// say.
func firstUsable(templates []template, compile func(template, *plan) reading, wanted *plan) reading {
	readings := make([]reading, len(templates))
	for i, t := range templates {
		readings[i] = compile(t, wanted)
	}
	return func(c *call) (string, bool) {
		for _, read := range readings {
			if text, ok := read(c); ok && usable(text) {
				return text, true
			}
		}
		return "", false
	}
}

// compileSigned returns how to write the signed bytes. It reports false if a part is missing.
func (t template) compileSigned() func(*call, io.Writer) bool {
	type writing func(*call, io.Writer) bool
	writings := make([]writing, len(t))
	for i, part := range t {
		switch {
		case part.text != "":
			text := []byte(part.text)
			writings[i] = func(_ *call, w io.Writer) bool { return write(w, text) }
		case part.place.kind == inBody:
			writings[i] = func(c *call, w io.Writer) bool { return write(w, c.req.Body) }
		default:
			read := part.place.compile(nil)
			writings[i] = func(c *call, w io.Writer) bool {
				text, ok := read(c)
				if !ok {
					return false
				}
				c.scratch = append(c.scratch[:0], text...)
				return write(w, c.scratch)
			}
		}
	}
	return func(c *call, w io.Writer) bool {
		for _, write := range writings {
			if !write(c, w) {
				return false
			}
		}
		return true
	}
}

// write writes to a hash or a buffer, which never fail.
func write(w io.Writer, p []byte) bool {
	_, err := w.Write(p)
	return err == nil
}
