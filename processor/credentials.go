package processor

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"html"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"

	"github.com/inboxd/inboxd/inbox"
)

// showing is how a handler's credentials are shown to it. The zero value shows none.
type showing struct {
	authorization string
	headers       []fixedHeader
	tls           *tls.Config // nil for that of all handlers
	tokens        *tokens     // nil unless authorization is a token
	words         []string    // the secrets as they go over the wire, for mask
}

// fixedHeader is a header whose value is the same on every request.
type fixedHeader struct {
	name   string
	values []string
}

// newShowing compiles the credentials of a handler whose URL has the scheme. Its errors are *inbox.InvalidError.
func newShowing(c *inbox.Credentials, scheme string) (s showing, err error) {
	if c.Empty() {
		return s, nil
	}
	kinds := 0
	seen := map[string]bool{}
	for i, h := range c.Headers {
		field := fmt.Sprintf("credentials.headers[%d]", i)
		name := textproto.CanonicalMIMEHeaderKey(h.Name)
		switch {
		case !validName(h.Name):
			return s, &inbox.InvalidError{Field: field + ".name", Detail: "is no name of a header"}
		case reservedHeader(name):
			return s, &inbox.InvalidError{Field: field + ".name", Detail: "is a header that inboxd or the connection sets itself"}
		case seen[name]:
			return s, &inbox.InvalidError{Field: field + ".name", Detail: "is given twice"}
		}
		if err := checkValue(field+".value", h.Value); err != nil {
			return s, err
		}
		seen[name] = true
		if name == "Authorization" {
			kinds++
		}
		s.headers = append(s.headers, fixedHeader{name, []string{h.Value.Reveal()}})
		s.words = append(s.words, h.Value.Reveal())
		if _, rest, ok := strings.Cut(h.Value.Reveal(), " "); ok {
			s.words = append(s.words, rest) // without the scheme, as in ApiKey …
		}
	}
	if c.Bearer != "" {
		kinds++
		if err := checkValue("credentials.bearer", c.Bearer); err != nil {
			return s, err
		}
		s.authorization = "Bearer " + c.Bearer.Reveal()
		s.words = append(s.words, c.Bearer.Reveal())
	}
	if c.Basic != nil {
		kinds++
		// RFC 7617 section 2: the first colon ends the name.
		if c.Basic.Username == "" || strings.Contains(c.Basic.Username, ":") {
			return s, &inbox.InvalidError{Field: "credentials.basic.username", Detail: "must not be empty, nor have a colon"}
		}
		encoded := base64.StdEncoding.EncodeToString([]byte(c.Basic.Username + ":" + c.Basic.Password.Reveal()))
		s.authorization = "Basic " + encoded
		s.words = append(s.words, encoded, c.Basic.Password.Reveal())
	}
	if c.OAuth2 != nil {
		kinds++
		if s.tokens, err = newTokens(c.OAuth2); err != nil {
			return s, err
		}
		s.words = append(s.words, c.OAuth2.ClientSecret.Reveal())
	}
	if kinds > 1 {
		return s, &inbox.InvalidError{Field: "credentials", Detail: "must have at most one of bearer, basic, oauth2 and a header Authorization"}
	}
	if c.TLS != nil {
		if scheme != "https" {
			return s, &inbox.InvalidError{Field: "credentials.tls", Detail: "needs a URL with https"}
		}
		if s.tls, err = newTLS(c.TLS); err != nil {
			return s, err
		}
	}
	return s, nil
}

func checkValue(field string, value inbox.Secret) error {
	text := value.Reveal()
	if value.Blank() || strings.TrimSpace(text) != text || !validValue(text) {
		return &inbox.InvalidError{Field: field, Detail: "must be the value of a header: not empty, no control characters, no space around it"}
	}
	return nil
}

// reservedHeader reports whether a handler's headers must not have the name, which is in canonical form. Credentials
// for inboxd are not relayed; those that it has for the handler are what this is for.
func reservedHeader(name string) bool {
	if name == "Authorization" || name == "Cookie" {
		return false
	}
	_, reserved := relayed[name]
	return reserved || looksOwn(name) || strings.HasPrefix(name, ownPrefix) || strings.HasPrefix(name, "Webhook-")
}

// newTLS returns the settings that differ from those of all handlers.
func newTLS(c *inbox.TLSCredential) (*tls.Config, error) {
	own := &tls.Config{}
	switch {
	case c.Certificate == "" && c.Key == "" && c.CA == "":
		return nil, &inbox.InvalidError{Field: "credentials.tls", Detail: "must have certificate and key, or ca, or both"}
	case c.Certificate == "" && c.Key != "":
		return nil, &inbox.InvalidError{Field: "credentials.tls.certificate", Detail: "is missing"}
	case c.Certificate != "" && c.Key == "":
		return nil, &inbox.InvalidError{Field: "credentials.tls.key", Detail: "is missing"}
	case c.Certificate != "":
		pair, err := tls.X509KeyPair([]byte(c.Certificate.Reveal()), []byte(c.Key.Reveal()))
		if err != nil {
			// The reason is left out: it may quote what it couldn't read.
			return nil, &inbox.InvalidError{Field: "credentials.tls", Detail: "must have a certificate and the key that belongs to it, both in PEM"}
		}
		own.Certificates = []tls.Certificate{pair}
	}
	if c.CA != "" {
		var err error
		if own.RootCAs, err = newPool("credentials.tls.ca", c.CA); err != nil {
			return nil, err
		}
	}
	return own, nil
}

// Certificate returns the client certificate; nil if there is none or it can't be read.
func Certificate(c *inbox.TLSCredential) *x509.Certificate {
	if c == nil {
		return nil
	}
	block, _ := pem.Decode([]byte(c.Certificate.Reveal()))
	if block == nil {
		return nil
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil
	}
	return leaf
}

func newPool(field string, ca inbox.Secret) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(ca.Reveal())) {
		return nil, &inbox.InvalidError{Field: field, Detail: "must be one or more certificates in PEM"}
	}
	return pool, nil
}

// apply adds the credentials to a request's headers, in place of what the provider sent by these names.
func (s *showing) apply(header http.Header, authorization string) {
	for _, h := range s.headers {
		header[h.name] = h.values
	}
	if authorization != "" {
		header["Authorization"] = []string{authorization}
	}
}

// shortestWord is what mask looks for: less than this is found by chance.
const shortestWord = 6

var maskedWord = []byte("***")

// mask hides the credentials in an answer that is kept: a handler's error page may repeat the request, as JSON, HTML
// or part of a URL. A part of one at the end, where the answer was cut off, is hidden too.
func (s *showing) mask(answer []byte, token string) []byte {
	words := s.words
	if token != "" {
		words = append(slices.Clip(words), token)
	}
	for _, word := range words {
		if len(word) >= shortestWord {
			answer = maskWord(answer, word)
		}
	}
	return answer
}

func maskWord(answer []byte, word string) []byte {
	var masked []byte
	rest := 0 // what of the answer is not in masked yet
	for i := 0; i < len(answer); {
		n := spelledWord(answer[i:], word)
		if n == 0 {
			i++
			continue
		}
		masked = append(append(masked, answer[rest:i]...), maskedWord...)
		i += n
		rest = i
	}
	if rest == 0 {
		return answer
	}
	return append(masked, answer[rest:]...)
}

// spelledWord returns how many bytes at the beginning of the text are the word, or as much of it as there is before
// the text ends; 0 if they aren't.
func spelledWord(text []byte, word string) int {
	at := 0
	for i := range len(word) {
		n, cut := spelledByte(text[at:], word[i])
		if cut && i >= shortestWord {
			return len(text)
		}
		if n == 0 {
			return 0
		}
		at += n
	}
	return at
}

// spelledByte returns how many bytes at the beginning of the text are the byte, which JSON, HTML and URLs write in other
// ways unless it is a letter or digit; cut, if the text ends before that can be told.
func spelledByte(text []byte, b byte) (n int, cut bool) {
	if len(text) == 0 {
		return 0, true
	}
	letter := '0' <= b && b <= '9' || 'A' <= b && b <= 'Z' || 'a' <= b && b <= 'z'
	if !letter && strings.IndexByte(`\%&+`, text[0]) >= 0 {
		for _, spelling := range []string{
			`\` + string(rune(b)), fmt.Sprintf(`\u%04x`, b), fmt.Sprintf("%%%02x", b), fmt.Sprintf("&#%d;", b), fmt.Sprintf("&#x%x;", b),
			html.EscapeString(string(rune(b))), htmlNames[b], url.QueryEscape(string(rune(b))),
		} {
			m := min(len(spelling), len(text))
			if m > 0 && strings.EqualFold(spelling[:m], string(text[:m])) {
				if m == len(spelling) {
					return m, false
				}
				cut = true
			}
		}
	}
	if text[0] == b {
		return 1, cut
	}
	return 0, cut
}

// htmlNames has what html.EscapeString writes as a number.
var htmlNames = map[byte]string{'"': "&quot;", '\'': "&apos;"}

// isURL reports whether a text is an http or https URL with a host, and nothing that a list should not show.
func isURL(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "" && u.User == nil && u.Fragment == ""
}
