package providers

import (
	"bytes"
	"errors"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// A body is scanned once, by hand: encoding/json would decode what nobody asked for, takes the last of two
// equal names and mends broken text, so that two different ids could become one. The scan checks the
// whole document (RFC 8259), keeps only slices of the wanted values, and notices a wanted name that occurs
// twice: such a document says two things, and whoever reads it later may read the other one.

// maxDepth bounds the recursion of the scan; no provider nests so deeply.
const maxDepth = 1000

// step goes from a value to a member (name) or to an element (index ≥ 0).
type step struct {
	name  string
	index int
}

// parsePath reads the name of a json place.
func parsePath(path string) ([]step, error) {
	errPath := errors.New("is not a path such as data.object.id or [0].id")
	var steps []step
	for rest := path; rest != ""; {
		if index, after, ok := strings.Cut(rest, "]"); ok && rest[0] == '[' {
			i, err := strconv.ParseUint(index[1:], 10, 31)
			if err != nil || after != "" && after[0] != '.' && after[0] != '[' || after == "." {
				return nil, errPath
			}
			steps = append(steps, step{index: int(i)})
			rest = strings.TrimPrefix(after, ".")
			continue
		}
		var name strings.Builder
		i := 0
		for ; i < len(rest) && rest[i] != '.' && rest[i] != '['; i++ {
			if rest[i] == '\\' && i+1 < len(rest) {
				i++
			}
			name.WriteByte(rest[i])
		}
		if i == 0 || rest[i:] == "." {
			return nil, errPath
		}
		steps = append(steps, step{name: name.String(), index: -1})
		rest = strings.TrimPrefix(rest[i:], ".")
	}
	return steps, nil
}

// plan is the tree of the values that are wanted of a document.
type plan struct {
	root  want // its slot is 0
	wants int  // besides the root
}

// want is a value on the way to a wanted one.
type want struct {
	slot     int // where the value goes
	children []wantChild
}

type wantChild struct {
	step step
	want *want
}

// add wants the value at the path and returns its slot.
func (p *plan) add(path []step) int {
	w := &p.root
next:
	for _, s := range path {
		for _, child := range w.children {
			if child.step == s {
				w = child.want
				continue next
			}
		}
		p.wants++
		child := &want{slot: p.wants}
		w.children = append(w.children, wantChild{s, child})
		w = child
	}
	return w.slot
}

// slots is how many values a scan fills.
func (p *plan) slots() int { return p.wants + 1 }

type valueKind byte

const (
	valueMissing valueKind = iota
	valueAmbiguous
	valueString
	valueNumber
	valueBool
	valueNull
	valueObject
	valueArray
)

// value is a slice of the document.
type value struct {
	kind valueKind
	raw  []byte // as it stands there, a string without its quotes
}

// text returns what a string, number or boolean says; a number exactly as written. A string that is not
// valid Unicode says nothing, since mending it could make two different ones equal.
func (v value) text() (string, bool) {
	switch v.kind {
	case valueNumber, valueBool:
		return string(v.raw), true
	case valueString:
		return unquote(v.raw)
	}
	return "", false
}

// scan fills values, one per slot of the plan, and reports whether doc is one valid JSON value. If it
// isn't, every value is missing.
func (p *plan) scan(doc []byte, values []value) bool {
	clear(values)
	s := scanner{data: doc, values: values}
	s.space()
	if !s.value(&p.root) {
		clear(values)
		return false
	}
	s.space()
	if s.pos != len(doc) {
		clear(values)
		return false
	}
	return true
}

// elements returns the raw elements of a valid JSON array.
func elements(array []byte) [][]byte {
	s := scanner{data: array, pos: 1}
	var list [][]byte
	for {
		s.space()
		if s.data[s.pos] == ']' {
			return list
		}
		start := s.pos
		s.value(nil)
		list = append(list, array[start:s.pos])
		s.space()
		if s.data[s.pos] == ',' {
			s.pos++
		}
	}
}

type scanner struct {
	data   []byte
	pos    int
	depth  int
	values []value
}

func (s *scanner) space() {
	for s.pos < len(s.data) {
		switch s.data[s.pos] {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return
		}
	}
}

// peek returns the byte at the position, 0 at the end: no JSON token starts with it.
func (s *scanner) peek() byte {
	if s.pos < len(s.data) {
		return s.data[s.pos]
	}
	return 0
}

// value passes one value, and keeps what w wants of it.
func (s *scanner) value(w *want) bool {
	start := s.pos
	var kind valueKind
	var ok bool
	switch c := s.peek(); c {
	case '{':
		kind, ok = valueObject, s.nested((*scanner).object, w)
	case '[':
		kind, ok = valueArray, s.nested((*scanner).array, w)
	case '"':
		kind, ok = valueString, s.quoted()
	case 't':
		kind, ok = valueBool, s.word("true")
	case 'f':
		kind, ok = valueBool, s.word("false")
	case 'n':
		kind, ok = valueNull, s.word("null")
	default:
		kind, ok = valueNumber, s.number()
	}
	if ok && w != nil {
		raw := s.data[start:s.pos]
		if kind == valueString {
			raw = raw[1 : len(raw)-1]
		}
		s.values[w.slot] = value{kind, raw}
	}
	return ok
}

func (s *scanner) nested(scan func(*scanner, *want) bool, w *want) bool {
	if s.depth++; s.depth > maxDepth {
		return false
	}
	s.pos++
	ok := scan(s, w)
	s.depth--
	return ok
}

func (s *scanner) object(w *want) bool {
	if s.space(); s.peek() == '}' {
		s.pos++
		return true
	}
	for {
		s.space()
		start := s.pos
		if s.peek() != '"' || !s.quoted() {
			return false
		}
		child := w.member(s.data[start+1 : s.pos-1])
		if child != nil && s.values[child.slot].kind != valueMissing {
			child.forget(s.values)
			child = nil
		}
		if s.space(); s.peek() != ':' {
			return false
		}
		s.pos++
		s.space()
		if !s.value(child) {
			return false
		}
		s.space()
		switch s.peek() {
		case ',':
			s.pos++
		case '}':
			s.pos++
			return true
		default:
			return false
		}
	}
}

func (s *scanner) array(w *want) bool {
	if s.space(); s.peek() == ']' {
		s.pos++
		return true
	}
	for i := 0; ; i++ {
		s.space()
		if !s.value(w.element(i)) {
			return false
		}
		s.space()
		switch s.peek() {
		case ',':
			s.pos++
		case ']':
			s.pos++
			return true
		default:
			return false
		}
	}
}

// member returns the child for a member's name, as it stands between its quotes.
func (w *want) member(raw []byte) *want {
	if w == nil {
		return nil
	}
	if bytes.IndexByte(raw, '\\') >= 0 {
		// "\u0069d" is the name id too.
		text, ok := unquote(raw)
		if !ok {
			return nil
		}
		raw = []byte(text)
	}
	for _, child := range w.children {
		if child.step.index < 0 && string(raw) == child.step.name {
			return child.want
		}
	}
	return nil
}

func (w *want) element(i int) *want {
	if w == nil {
		return nil
	}
	for _, child := range w.children {
		if child.step.index == i {
			return child.want
		}
	}
	return nil
}

// forget makes w and all below it ambiguous.
func (w *want) forget(values []value) {
	values[w.slot] = value{kind: valueAmbiguous}
	for _, child := range w.children {
		child.want.forget(values)
	}
}

func (s *scanner) word(word string) bool {
	if string(s.data[s.pos:min(len(s.data), s.pos+len(word))]) != word {
		return false
	}
	s.pos += len(word)
	return true
}

// quoted passes a string; the position is at its opening quote.
func (s *scanner) quoted() bool {
	for i := s.pos + 1; i < len(s.data); i++ {
		switch c := s.data[i]; {
		case c == '"':
			s.pos = i + 1
			return true
		case c < ' ':
			return false
		case c == '\\':
			if i++; i == len(s.data) {
				return false
			}
			switch s.data[i] {
			case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			case 'u':
				if _, ok := hex4(s.data[i+1:]); !ok {
					return false
				}
				i += 4
			default:
				return false
			}
		}
	}
	return false
}

func (s *scanner) number() bool {
	if s.peek() == '-' {
		s.pos++
	}
	if s.peek() == '0' {
		s.pos++
	} else if !s.digits() {
		return false
	}
	if s.peek() == '.' {
		s.pos++
		if !s.digits() {
			return false
		}
	}
	if c := s.peek(); c == 'e' || c == 'E' {
		s.pos++
		if c := s.peek(); c == '+' || c == '-' {
			s.pos++
		}
		return s.digits()
	}
	return true
}

// digits passes at least one digit.
func (s *scanner) digits() bool {
	start := s.pos
	for c := s.peek(); '0' <= c && c <= '9'; c = s.peek() {
		s.pos++
	}
	return s.pos > start
}

// hex4 reads the four digits of a \u escape.
func hex4(data []byte) (rune, bool) {
	if len(data) < 4 {
		return 0, false
	}
	var r rune
	for _, c := range data[:4] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

// unquote returns the text of a string that the scan has passed. It fails on bytes that are not UTF-8 and
// on a lone surrogate.
func unquote(raw []byte) (string, bool) {
	if !utf8.Valid(raw) {
		return "", false
	}
	text := string(raw)
	if !strings.Contains(text, `\`) {
		return text, true
	}
	out := make([]byte, 0, len(raw))
	for i := 0; i < len(raw); i++ {
		if raw[i] != '\\' {
			out = append(out, raw[i])
			continue
		}
		i++
		switch raw[i] {
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			r, _ := hex4(raw[i+1:])
			i += 4
			if utf16.IsSurrogate(r) {
				if i+2 >= len(raw) || raw[i+1] != '\\' || raw[i+2] != 'u' {
					return "", false
				}
				low, _ := hex4(raw[i+3:])
				if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
					return "", false
				}
				i += 6
			}
			out = utf8.AppendRune(out, r)
		default:
			out = append(out, raw[i])
		}
	}
	return string(out), true
}
