package inbox

import (
	"maps"
	"slices"
)

// Credentials is what inboxd shows a handler of itself beside the signature, such as a bearer token. At most one of
// Bearer, Basic and OAuth2 is set. Every Secret may be a reference (env:, file:). It is immutable.
type Credentials struct {
	Headers []CredentialHeader
	Bearer  Secret
	Basic   *BasicCredential
	OAuth2  *OAuth2Credential
	TLS     *TLSCredential

	// Sealed is what is stored, if it can't be opened; all else is empty then.
	Sealed string
}

// CredentialHeader is a header with the same value on every request.
type CredentialHeader struct {
	Name  string
	Value Secret
}

// BasicCredential is a user and password, RFC 7617.
type BasicCredential struct {
	Username string
	Password Secret
}

// OAuth2Credential gets bearer tokens by the client credentials grant, RFC 6749 section 4.4.
type OAuth2Credential struct {
	TokenURL     string
	ClientID     string
	ClientSecret Secret
	Scopes       []string
	Params       map[string]Secret // what else the token endpoint is sent
	InBody       bool              // the client's id and secret go into the body, not into a basic Authorization
	CA           Secret            // certificates, PEM, by which the token endpoint is trusted; "" for the system's
}

// TLSCredential is a client certificate, and whom the handler's certificate must be signed by. All in PEM.
type TLSCredential struct {
	Certificate Secret // with its chain; "" for none
	Key         Secret
	CA          Secret // "" for the system's
}

// Empty reports whether there are none.
func (c *Credentials) Empty() bool {
	return c == nil || len(c.Headers) == 0 && c.Bearer == "" && c.Basic == nil && c.OAuth2 == nil && c.TLS == nil && c.Sealed == ""
}

// Equal reports whether both are the same.
func (c *Credentials) Equal(other *Credentials) bool {
	if c == other || c == nil || other == nil {
		return c == other
	}
	return slices.Equal(c.Headers, other.Headers) && c.Bearer == other.Bearer && equal(c.Basic, other.Basic) &&
		c.OAuth2.equal(other.OAuth2) && equal(c.TLS, other.TLS) && c.Sealed == other.Sealed
}

func (c *OAuth2Credential) equal(other *OAuth2Credential) bool {
	if c == nil || other == nil {
		return c == other
	}
	return c.TokenURL == other.TokenURL && c.ClientID == other.ClientID && c.ClientSecret == other.ClientSecret &&
		slices.Equal(c.Scopes, other.Scopes) && maps.Equal(c.Params, other.Params) && c.InBody == other.InBody && c.CA == other.CA
}

func equal[T comparable](a, b *T) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

// Kinds says what there is, without any secret.
func (c *Credentials) Kinds() []string {
	kinds := []string{}
	if c == nil {
		return kinds
	}
	for _, h := range c.Headers {
		kinds = append(kinds, "header "+h.Name)
	}
	if c.Bearer != "" {
		kinds = append(kinds, "bearer")
	}
	if c.Basic != nil {
		kinds = append(kinds, "basic "+c.Basic.Username)
	}
	if c.OAuth2 != nil {
		kinds = append(kinds, "oauth2 "+c.OAuth2.ClientID+" at "+c.OAuth2.TokenURL)
	}
	if c.TLS != nil && c.TLS.Certificate != "" {
		kinds = append(kinds, "client certificate")
	}
	if c.TLS != nil && c.TLS.CA != "" {
		kinds = append(kinds, "own CA")
	}
	if c.Sealed != "" {
		kinds = append(kinds, "sealed under a key that is missing")
	}
	return kinds
}

// Map returns a copy in which f has made each secret anew, or f's first error.
func (c *Credentials) Map(f func(Secret) (Secret, error)) (*Credentials, error) {
	made := *c
	var err error
	apply := func(s *Secret) {
		if *s != "" && err == nil {
			*s, err = f(*s)
		}
	}
	made.Headers = slices.Clone(c.Headers)
	for i := range made.Headers {
		apply(&made.Headers[i].Value)
	}
	apply(&made.Bearer)
	if c.Basic != nil {
		basic := *c.Basic
		apply(&basic.Password)
		made.Basic = &basic
	}
	if c.OAuth2 != nil {
		oauth := *c.OAuth2
		apply(&oauth.ClientSecret)
		apply(&oauth.CA)
		oauth.Params = maps.Clone(c.OAuth2.Params)
		for name, value := range oauth.Params {
			apply(&value)
			oauth.Params[name] = value
		}
		made.OAuth2 = &oauth
	}
	if c.TLS != nil {
		tls := *c.TLS
		apply(&tls.Certificate)
		apply(&tls.Key)
		apply(&tls.CA)
		made.TLS = &tls
	}
	if err != nil {
		return nil, err
	}
	return &made, nil
}
