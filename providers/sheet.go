package providers

import (
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// spec is what the keys of a sheet say, see the package's documentation. Reading another node into a spec
// lays it over: what the node doesn't set stays.
type spec struct {
	signature   signatureSpec
	signed      template
	timestamp   timestampSpec
	require     []requirement
	items       *place
	messageID   []template
	messageType []template
	orderingKey []template
	bizKey      bizKeySpec
	eventTime   eventTimeSpec
	answer      Answer
	sample      sampleSpec
}

type signatureSpec struct {
	scheme    string
	algorithm string // of an HMAC
	key       string
	in        *place
	prefix    string
	pairs     pairsSpec
	encoding  string
}

// pairsSpec says how a signature's place holds pairs. Without a name it holds the signature alone.
type pairsSpec struct {
	between string // stands between two pairs
	within  string // stands between name and value
	name    string // of the pairs whose value is a signature; others are ignored
	strict  bool   // refuse the request if any item is not exactly one pair
}

type timestampSpec struct {
	in        *place
	unit      string
	tolerance time.Duration
}

// requirement is a condition on a genuine request: value is equal to equals, or contains no without.
type requirement struct {
	value   template
	equals  template
	without string
}

type bizKeySpec struct {
	types []string // globs (path.Match), as a handler's subscription
	from  []template
}

type eventTimeSpec struct {
	from []template
	unit string
}

type sampleSpec struct {
	messageType string
	contentType string
	headers     map[string]string
	body        string
}

// units are the ways in which a time is written.
var units = map[string]func(string) (time.Time, bool){
	"s": func(text string) (time.Time, bool) {
		n, ok := parseUnix(text)
		return time.Unix(n, 0), ok && n <= maxUnix
	},
	"ms": func(text string) (time.Time, bool) {
		n, ok := parseUnix(text)
		return time.UnixMilli(n), ok && n <= maxUnix*1000
	},
	"date": parseDate,
}

// maxUnix is the end of the year 9999. Far beyond it time.Time wraps around to the past.
const maxUnix = 253402300799

// parseUnix reads digits alone: "+1", " 1" and "1.0" would leave the signed text open to more than one
// reading.
func parseUnix(text string) (int64, bool) {
	n, err := strconv.ParseUint(text, 10, 63)
	return int64(n), err == nil
}

// parseDate reads the dates of RFC 3339 and of RFC 1123, the zone as a number or GMT.
func parseDate(text string) (time.Time, bool) {
	for _, layout := range []string{time.RFC3339, time.RFC1123Z, "Mon, 02 Jan 2006 15:04:05 GMT"} {
		if t, err := time.Parse(layout, text); err == nil {
			return t, true
		}
	}
	return time.Time{}, false
}

// reader collects every mistake of what it reads, so that all can be mended at once.
type reader struct {
	open   []string // the keys that may be set, with all below them; nil opens every one
	errs   []error
	failed []string // keys with a mistake
}

func (r *reader) fail(n node, format string, args ...any) {
	r.failed = append(r.failed, n.path)
	r.errs = append(r.errs, n.errorf(format, args...))
}

// opens reports whether the key, or something below it, may be set.
func (r *reader) opens(key string) bool {
	return r.open == nil || slices.ContainsFunc(r.open, func(open string) bool {
		return key == open || strings.HasPrefix(key, open+".") || strings.HasPrefix(open, key+".")
	})
}

func (r *reader) is(n node, kind nodeKind) bool {
	if n.kind != kind {
		r.fail(n, "is %s; %s is expected", n.kind, kind)
	}
	return n.kind == kind
}

// object reads each member with the function of its name.
func (r *reader) object(n node, members map[string]func(node)) {
	if !r.is(n, kindObject) {
		return
	}
	for _, f := range n.fields {
		read, known := members[f.name]
		switch {
		case !known:
			names := slices.Sorted(maps.Keys(members))
			names = slices.DeleteFunc(names, func(name string) bool { return !r.opens(n.child(name)) })
			r.fail(f.value, "unknown key; known are %s", strings.Join(names, ", "))
		case !r.opens(f.value.path):
			r.fail(f.value, "is fixed by the provider; a source may set %s", strings.Join(r.open, ", "))
		default:
			read(f.value)
		}
	}
}

func (r *reader) text(to *string) func(node) {
	return func(n node) {
		if r.is(n, kindScalar) {
			*to = n.text
		}
	}
}

func (r *reader) texts(to *[]string) func(node) {
	return func(n node) {
		if !r.is(n, kindList) {
			return
		}
		*to = make([]string, len(n.list))
		for i, element := range n.list {
			r.text(&(*to)[i])(element)
		}
	}
}

// textMap reads an object of texts.
func (r *reader) textMap(to *map[string]string) func(node) {
	return func(n node) {
		if !r.is(n, kindObject) {
			return
		}
		*to = map[string]string{}
		for _, f := range n.fields {
			if r.is(f.value, kindScalar) {
				(*to)[f.name] = f.value.text
			}
		}
	}
}

// word reads one of the words.
func (r *reader) word(to *string, words ...string) func(node) {
	return func(n node) {
		if !r.is(n, kindScalar) {
			return
		}
		if !slices.Contains(words, n.text) {
			r.fail(n, "must be one of %s", strings.Join(words, ", "))
			return
		}
		*to = n.text
	}
}

func (r *reader) place(to **place, allowed []placeKind) func(node) {
	return func(n node) {
		if !r.is(n, kindScalar) {
			return
		}
		p, err := parsePlace(n.text, allowed)
		if err != nil {
			r.fail(n, "%w", err)
			return
		}
		*to = &p
	}
}

func (r *reader) template(to *template, allowed []placeKind) func(node) {
	return func(n node) {
		if !r.is(n, kindScalar) {
			return
		}
		t, err := parseTemplate(n.text, allowed)
		if err != nil {
			r.fail(n, "%w", err)
			return
		}
		*to = t
	}
}

// templates reads one template or a list of them.
func (r *reader) templates(to *[]template, allowed []placeKind) func(node) {
	return func(n node) {
		if n.kind == kindScalar {
			n.list = []node{n}
		} else if !r.is(n, kindList) {
			return
		}
		*to = make([]template, len(n.list))
		for i, element := range n.list {
			r.template(&(*to)[i], allowed)(element)
		}
	}
}

// keys reads templates that tell messages apart.
func (r *reader) keys(to *[]template) func(node) {
	return func(n node) {
		before := len(r.errs)
		r.templates(to, identityPlaces)(n)
		if len(r.errs) > before {
			return
		}
		for _, t := range *to {
			if err := t.identifies(); err != nil {
				r.fail(n, "%w", err)
			}
		}
	}
}

func (s *spec) members(r *reader) map[string]func(node) {
	return map[string]func(node){
		"signature":    func(n node) { r.object(n, s.signature.members(r)) },
		"signed":       r.template(&s.signed, signedPlaces),
		"timestamp":    func(n node) { r.object(n, s.timestamp.members(r)) },
		"require":      func(n node) { s.readRequirements(r, n) },
		"items":        r.place(&s.items, itemsPlaces),
		"message_id":   r.keys(&s.messageID),
		"message_type": r.templates(&s.messageType, identityPlaces),
		"ordering_key": r.keys(&s.orderingKey),
		"biz_key":      func(n node) { r.object(n, s.bizKey.members(r)) },
		"event_time": func(n node) {
			r.object(n, map[string]func(node){
				"from": r.templates(&s.eventTime.from, identityPlaces),
				"unit": r.word(&s.eventTime.unit, unitNames()...),
			})
		},
		"answer": func(n node) { r.object(n, s.answer.members(r)) },
		"sample": func(n node) {
			r.object(n, map[string]func(node){
				"message_type": r.text(&s.sample.messageType),
				"content_type": r.text(&s.sample.contentType),
				"headers":      r.textMap(&s.sample.headers),
				"body":         r.text(&s.sample.body),
			})
		},
	}
}

func unitNames() []string { return slices.Sorted(maps.Keys(units)) }

func (s *signatureSpec) members(r *reader) map[string]func(node) {
	keys := slices.AppendSeq(slices.Sorted(maps.Keys(hmacKeys)), maps.Keys(ed25519Keys))
	return map[string]func(node){
		"scheme":    r.word(&s.scheme, "hmac", "ed25519", "token", "none"),
		"algorithm": r.word(&s.algorithm, slices.Sorted(maps.Keys(hashes))...),
		"key":       r.word(&s.key, keys...),
		"in":        r.place(&s.in, signaturePlaces),
		"prefix":    r.text(&s.prefix),
		"pairs": func(n node) {
			r.object(n, map[string]func(node){
				"between": r.text(&s.pairs.between),
				"within":  r.text(&s.pairs.within),
				"name":    r.text(&s.pairs.name),
				"strict": func(n node) {
					var word string
					r.word(&word, "true", "false")(n)
					s.pairs.strict = word == "true"
				},
			})
		},
		"encoding": r.word(&s.encoding, "hex", "hex-lower", "base64"),
	}
}

func (s *timestampSpec) members(r *reader) map[string]func(node) {
	return map[string]func(node){
		"in":   r.place(&s.in, timestampPlaces),
		"unit": r.word(&s.unit, unitNames()...),
		"tolerance": func(n node) {
			if !r.is(n, kindScalar) {
				return
			}
			d, err := time.ParseDuration(n.text)
			if err != nil || d <= 0 {
				r.fail(n, "must be a duration above zero, such as 5m or 90s")
				return
			}
			s.tolerance = d
		},
	}
}

func (s *spec) readRequirements(r *reader, n node) {
	if !r.is(n, kindList) {
		return
	}
	s.require = make([]requirement, len(n.list))
	for i, element := range n.list {
		req := &s.require[i]
		r.object(element, map[string]func(node){
			"value":   r.template(&req.value, requiredPlaces),
			"equals":  r.template(&req.equals, requiredPlaces),
			"without": r.text(&req.without),
		})
		if req.value == nil || (req.equals == nil) == (req.without == "") {
			r.fail(element, "needs value, and either equals or without")
		}
	}
}

func (s *bizKeySpec) members(r *reader) map[string]func(node) {
	return map[string]func(node){
		"types": func(n node) {
			r.texts(&s.types)(n)
			for _, glob := range s.types {
				if _, err := path.Match(glob, ""); err != nil {
					r.fail(n, "%w", err)
				}
			}
		},
		"from": r.keys(&s.from),
	}
}

func (a *Answer) members(r *reader) map[string]func(node) {
	return map[string]func(node){
		"status": func(n node) {
			if !r.is(n, kindScalar) {
				return
			}
			status, err := strconv.Atoi(n.text)
			if err != nil || status < 200 || status > 299 {
				r.fail(n, "must be a status from 200 to 299: any other makes the provider send again")
				return
			}
			a.Status = status
		},
		"content_type": r.text(&a.ContentType),
		"body": func(n node) {
			if r.is(n, kindScalar) {
				a.Body = []byte(n.text)
			}
		},
	}
}
