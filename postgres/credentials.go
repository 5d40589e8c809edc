package postgres

import (
	"encoding/json"
	"errors"
	"slices"

	"github.com/inboxd/inboxd/inbox"
)

// handlerCredentials is what sealed credentials are bound to, before their handler's name.
const handlerCredentials = "handler credentials/"

// storedCredentials is what is sealed: as a whole, since a token's URL and a user's name are worth hiding, too.
type storedCredentials struct {
	Headers []storedHeader `json:"headers,omitempty"`
	Bearer  string         `json:"bearer,omitempty"`
	Basic   *storedBasic   `json:"basic,omitempty"`
	OAuth2  *storedOAuth2  `json:"oauth2,omitempty"`
	TLS     *storedTLS     `json:"tls,omitempty"`
}

type storedHeader struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type storedBasic struct {
	Username string `json:"username"`
	Password string `json:"password"`
}

type storedOAuth2 struct {
	TokenURL     string            `json:"token_url"`
	ClientID     string            `json:"client_id"`
	ClientSecret string            `json:"client_secret"`
	Scopes       []string          `json:"scopes,omitempty"`
	Params       map[string]string `json:"params,omitempty"`
	InBody       bool              `json:"in_body,omitempty"`
	CA           string            `json:"ca,omitempty"`
}

type storedTLS struct {
	Certificate string `json:"certificate,omitempty"`
	Key         string `json:"key,omitempty"`
	CA          string `json:"ca,omitempty"`
}

// sealCredentials returns what is stored of a handler's credentials; nil if it has none. had is what it had: what
// can't be opened stays as it is.
func (db *DB) sealCredentials(name string, c, had *inbox.Credentials) (*string, error) {
	if c.Empty() {
		return nil, nil
	}
	if c.Sealed != "" {
		if had == nil || had.Sealed != c.Sealed {
			return nil, inbox.ErrRefused
		}
		return &c.Sealed, nil
	}
	if db.secrets.Keys.Empty() {
		return nil, inbox.ErrNoSealingKey
	}
	stored := storedCredentials{Bearer: c.Bearer.Reveal()}
	for _, h := range c.Headers {
		stored.Headers = append(stored.Headers, storedHeader{h.Name, h.Value.Reveal()})
	}
	if c.Basic != nil {
		stored.Basic = &storedBasic{c.Basic.Username, c.Basic.Password.Reveal()}
	}
	if o := c.OAuth2; o != nil {
		stored.OAuth2 = &storedOAuth2{
			TokenURL: o.TokenURL, ClientID: o.ClientID, ClientSecret: o.ClientSecret.Reveal(), Scopes: o.Scopes, InBody: o.InBody, CA: o.CA.Reveal(),
			Params: make(map[string]string, len(o.Params)),
		}
		for name, value := range o.Params {
			stored.OAuth2.Params[name] = value.Reveal()
		}
	}
	if c.TLS != nil {
		stored.TLS = &storedTLS{c.TLS.Certificate.Reveal(), c.TLS.Key.Reveal(), c.TLS.CA.Reveal()}
	}
	text, err := json.Marshal(stored)
	if err != nil {
		return nil, errors.New("encode credentials") // the reason might repeat them
	}
	sealed, err := db.secrets.Keys.Seal(string(text), handlerCredentials+name)
	return &sealed, err
}

// openCredentials returns a handler's credentials, as they are stored where they can't be opened.
func (db *DB) openCredentials(name string, sealed *string) *inbox.Credentials {
	if sealed == nil {
		return nil
	}
	text, err := db.secrets.Keys.Open(*sealed, handlerCredentials+name)
	if err != nil {
		return &inbox.Credentials{Sealed: *sealed}
	}
	var stored storedCredentials
	if err := json.Unmarshal([]byte(text), &stored); err != nil {
		return &inbox.Credentials{Sealed: *sealed}
	}
	c := &inbox.Credentials{Bearer: inbox.Secret(stored.Bearer)}
	for _, h := range stored.Headers {
		c.Headers = append(c.Headers, inbox.CredentialHeader{Name: h.Name, Value: inbox.Secret(h.Value)})
	}
	if stored.Basic != nil {
		c.Basic = &inbox.BasicCredential{Username: stored.Basic.Username, Password: inbox.Secret(stored.Basic.Password)}
	}
	if o := stored.OAuth2; o != nil {
		c.OAuth2 = &inbox.OAuth2Credential{
			TokenURL: o.TokenURL, ClientID: o.ClientID, ClientSecret: inbox.Secret(o.ClientSecret), Scopes: slices.Clone(o.Scopes),
			InBody: o.InBody, CA: inbox.Secret(o.CA), Params: make(map[string]inbox.Secret, len(o.Params)),
		}
		for name, value := range o.Params {
			c.OAuth2.Params[name] = inbox.Secret(value)
		}
	}
	if stored.TLS != nil {
		c.TLS = &inbox.TLSCredential{
			Certificate: inbox.Secret(stored.TLS.Certificate), Key: inbox.Secret(stored.TLS.Key), CA: inbox.Secret(stored.TLS.CA),
		}
	}
	return c
}

// resolveCredentials is resolve for credentials.
func (db *DB) resolveCredentials(c *inbox.Credentials) (resolved *inbox.Credentials, fault string) {
	if c.Empty() {
		return nil, ""
	}
	if c.Sealed != "" {
		return nil, db.sealFault(c.Sealed)
	}
	resolved, err := c.Map(func(s inbox.Secret) (inbox.Secret, error) {
		if !s.Reference() {
			return s, nil
		}
		if db.secrets.LookupCredential == nil {
			return "", errors.New("references to secrets are not looked up here")
		}
		return db.secrets.LookupCredential(s.Reveal())
	})
	if err != nil {
		return nil, err.Error()
	}
	return resolved, ""
}

// handlerFault says why a handler's secrets or credentials can't be used.
func (db *DB) handlerFault(h *inbox.Handler) string {
	if _, fault := db.resolve(h.Secrets); fault != "" {
		return fault
	}
	_, fault := db.resolveCredentials(h.Credentials)
	return fault
}
