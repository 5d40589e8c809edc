package processor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"github.com/inboxd/inboxd/inbox"
)

// tokenTime bounds one request to a token endpoint.
const tokenTime = 10 * time.Second

// tokens gets a handler's bearer tokens, OAuth 2.0 client credentials, and keeps the latest until it ends. One is
// fetched at a time: who comes meanwhile waits for the result and shares it.
type tokens struct {
	config clientcredentials.Config
	host   string         // of the token endpoint
	roots  *x509.CertPool // who may sign its certificate; nil for those of all handlers
	client *http.Client   // set by the Forwarder
	turn   chan struct{}  // holds one element while somebody fetches

	mu      sync.Mutex // guards what follows
	token   *oauth2.Token
	failed  error // of the latest fetch that came to an end
	ended   int   // how many did
	forgot  bool  // the handler refused a token, and none was fetched since
	suspect bool  // the token took the place of a refused one, and the handler hasn't taken it yet
}

func newTokens(c *inbox.OAuth2Credential) (*tokens, error) {
	if !isURL(c.TokenURL) {
		return nil, &inbox.InvalidError{Field: "credentials.oauth2.token_url", Detail: "must be an http or https URL with a host, without user, password and fragment"}
	}
	if c.ClientID == "" {
		return nil, &inbox.InvalidError{Field: "credentials.oauth2.client_id", Detail: "is missing"}
	}
	if c.ClientSecret.Blank() {
		return nil, &inbox.InvalidError{Field: "credentials.oauth2.client_secret", Detail: "is missing"}
	}
	t := &tokens{
		config: clientcredentials.Config{
			ClientID: c.ClientID, ClientSecret: c.ClientSecret.Reveal(), TokenURL: c.TokenURL, Scopes: c.Scopes,
			EndpointParams: url.Values{}, AuthStyle: oauth2.AuthStyleInHeader, // to find out would take a second request
		},
		turn: make(chan struct{}, 1),
	}
	if c.InBody {
		t.config.AuthStyle = oauth2.AuthStyleInParams
	}
	if u, err := url.Parse(c.TokenURL); err == nil {
		t.host = u.Host
	}
	for name, value := range c.Params {
		switch name {
		case "grant_type", "client_id", "client_secret", "scope":
			return nil, &inbox.InvalidError{Field: "credentials.oauth2.params", Detail: "must not have " + name}
		}
		t.config.EndpointParams.Set(name, value.Reveal())
	}
	if c.CA != "" {
		var err error
		if t.roots, err = newPool("credentials.oauth2.ca", c.CA); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// get returns a token that hasn't ended, and the value of Authorization with it.
func (t *tokens) get(ctx context.Context) (token, authorization string, err error) {
	known, ended, _ := t.current()
	if known == nil {
		select {
		case t.turn <- struct{}{}:
			known, err = t.fetch(ctx, ended)
			<-t.turn
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	if err != nil {
		return "", "", err
	}
	return known.AccessToken, known.Type() + " " + known.AccessToken, nil
}

// current returns the token, nil if there is none or it has ended, how many fetches have come to an end, and how the
// latest of them failed.
func (t *tokens) current() (token *oauth2.Token, ended int, failed error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.token.Valid() {
		return t.token, t.ended, nil
	}
	return nil, t.ended, t.failed
}

// fetch asks for a token, unless somebody did since the caller began to wait. It runs in the caller's turn.
func (t *tokens) fetch(ctx context.Context, seen int) (*oauth2.Token, error) {
	token, ended, failed := t.current()
	if token != nil {
		return token, nil
	}
	if ended != seen && failed != nil {
		return nil, failed
	}
	limited, cancel := context.WithTimeout(ctx, tokenTime)
	defer cancel()
	token, err := t.config.Token(context.WithValue(limited, oauth2.HTTPClient, t.client))
	if ctx.Err() != nil && err != nil {
		return nil, context.Cause(ctx) // says nothing to those who wait
	}
	if err == nil && (!validValue(token.AccessToken) || !validName(token.Type())) {
		err = errTokenForm
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended++
	if t.failed = err; err != nil {
		return nil, err
	}
	t.token, t.suspect, t.forgot = token, t.forgot, false
	return token, nil
}

var errTokenForm = errors.New("the token can't stand in a header")

// refused forgets a token that the handler answered 401 to. It reports false if a new one would be as useless: the
// token took the place of one that was refused, and was never taken.
func (t *tokens) refused(token string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.token == nil || t.token.AccessToken != token {
		return true // somebody else forgot it
	}
	if t.suspect {
		return false
	}
	t.token, t.forgot = nil, true
	return true
}

// taken notes that the handler didn't answer 401.
func (t *tokens) taken(token string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.token != nil && t.token.AccessToken == token {
		t.suspect = false
	}
}

// explain says why there is no token, without a word of what the endpoint said beyond its error code: an answer
// may hold anything.
func (t *tokens) explain(err error) (inbox.Class, string) {
	class, text := inbox.ClassToken, "the answer can't be used"
	var timeout net.Error
	if answer, ok := errors.AsType[*oauth2.RetrieveError](err); ok {
		text = "it answered no token"
		if answer.Response != nil && (answer.Response.StatusCode < 200 || answer.Response.StatusCode > 299) {
			text = fmt.Sprintf("it answered %d", answer.Response.StatusCode)
		}
		// RFC 6749 section 5.2 has six of them, all like invalid_client.
		if code := answer.ErrorCode; code != "" && len(code) <= 40 && strings.Trim(code, "abcdefghijklmnopqrstuvwxyz_") == "" {
			text += " " + code
		}
	} else if wrong, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		text = wrong.Error()
	} else if c, known, ok := explainNetwork(err); ok {
		text = known
		if c == inbox.ClassRefused {
			class = c
		}
	} else if errors.As(err, &timeout) && timeout.Timeout() || errors.Is(err, context.DeadlineExceeded) {
		text = fmt.Sprintf("no answer within %v", tokenTime)
	}
	return class, "no token from " + t.host + ": " + text
}
