package api

import (
	"errors"
	"maps"
	"slices"

	"github.com/inboxd/inboxd/inbox"
)

// toCredentials returns nil for an object without a field: none.
func toCredentials(in *Credentials) *inbox.Credentials {
	if in == nil {
		return nil
	}
	c := &inbox.Credentials{Bearer: inbox.Secret(or(in.Bearer, ""))}
	for _, h := range in.Headers {
		c.Headers = append(c.Headers, inbox.CredentialHeader{Name: h.Name, Value: inbox.Secret(or(h.Value, ""))})
	}
	if in.Basic != nil {
		c.Basic = &inbox.BasicCredential{Username: in.Basic.Username, Password: inbox.Secret(or(in.Basic.Password, ""))}
	}
	if o := in.OAuth2; o != nil {
		c.OAuth2 = &inbox.OAuth2Credential{
			TokenURL: o.TokenURL, ClientID: o.ClientID, ClientSecret: inbox.Secret(or(o.ClientSecret, "")), Scopes: o.Scopes,
			InBody: or(o.ClientIn, "header") == "body", CA: inbox.Secret(or(o.Ca, "")),
		}
		if o.Params != nil {
			c.OAuth2.Params = make(map[string]inbox.Secret, len(o.Params))
			for name, value := range o.Params {
				c.OAuth2.Params[name] = inbox.Secret(value)
			}
		}
	}
	if t := in.TLS; t != nil {
		c.TLS = &inbox.TLSCredential{
			Certificate: inbox.Secret(or(t.Certificate, "")), Key: inbox.Secret(or(t.Key, "")), CA: inbox.Secret(or(t.Ca, "")),
		}
	}
	if c.Empty() {
		return nil
	}
	return c
}

// checkHandler refuses a handler that nothing could be sent to.
func (s *server) checkHandler(h *inbox.Handler) error {
	err := s.checker.CheckHandler(h)
	if wrong, ok := errors.AsType[*inbox.InvalidError](err); ok {
		return invalid(wrong.Field, wrong.Detail)
	}
	if err != nil {
		return &apiError{kind: ProblemInvalid, detail: err.Error()}
	}
	return nil
}

// showCredentials shows what is no secret: names, users, and of the certificate whose it is and until when.
func (s *server) showCredentials(h *inbox.Handler) *ShownCredentials {
	c := h.Credentials
	if c.Empty() {
		return nil
	}
	shown := &ShownCredentials{Bearer: some(c.Bearer != "")}
	for _, header := range c.Headers {
		shown.Headers = append(shown.Headers, header.Name)
	}
	if c.Basic != nil {
		shown.Basic = &ShownBasic{Username: c.Basic.Username}
	}
	if o := c.OAuth2; o != nil {
		shown.OAuth2 = &ShownOAuth2{
			TokenURL: o.TokenURL, ClientID: o.ClientID, Scopes: o.Scopes, Params: slices.Sorted(maps.Keys(o.Params)),
			ClientIn: "header", OwnCa: o.CA != "",
		}
		if o.InBody {
			shown.OAuth2.ClientIn = "body"
		}
	}
	if t := c.TLS; t != nil {
		shown.TLS = &ShownTLS{OwnCa: t.CA != ""}
		if leaf := s.checker.Certificate(h); leaf != nil {
			shown.TLS.Subject, shown.TLS.NotAfter = some(leaf.Subject.String()), someTime(leaf.NotAfter)
		}
	}
	return shown
}
