package api

import (
	"context"
	"crypto/sha256"
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/inboxd/inboxd/inbox"
)

// TokenStore knows the operators' tokens.
type TokenStore interface {
	TokenFinder
	Tokens(ctx context.Context) ([]*inbox.OperatorToken, error)
	// CreateToken returns the token's text.
	CreateToken(ctx context.Context, by inbox.Actor, t *inbox.OperatorToken) (string, error)
	RevokeToken(ctx context.Context, by inbox.Actor, name string) error
}

// TokenFinder looks a token up.
type TokenFinder interface {
	// TokenByHash returns the valid token whose text has this SHA-256, or ErrNotFound. How long it takes tells
	// about the hash at most, which nobody can choose.
	TokenByHash(ctx context.Context, hash [sha256.Size]byte) (*inbox.OperatorToken, error)
}

type tokenKey struct{}

// hashKey is of the token's hash, for what takes so long that the token may be revoked meanwhile.
type hashKey struct{}

// actor returns whose token a request came with.
func actor(ctx context.Context) inbox.Actor {
	if token, ok := ctx.Value(tokenKey{}).(*inbox.OperatorToken); ok {
		return inbox.Actor{Name: token.Name, TokenID: token.ID, Within: within(ctx)}
	}
	return inbox.Actor{}
}

// because adds an operator's words, if there are any, to the actor.
func because(by inbox.Actor, why *Reason) inbox.Actor {
	if why != nil {
		by.Reason, by.Note = or(why.Reason, ""), or(why.Note, "")
	}
	return by
}

// RequireToken lets requests pass that bring a valid token as bearer. It asks the store each time, so a
// token that was revoked or has expired ends at once.
func RequireToken(store TokenFinder, tries *Tries, log zerolog.Logger) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			scheme, text, ok := strings.Cut(r.Header.Get("Authorization"), " ")
			if text = strings.TrimSpace(text); !ok || !strings.EqualFold(scheme, "Bearer") || text == "" {
				w.Header().Set("WWW-Authenticate", `Bearer realm="inboxd"`)
				writeError(w, r, log, &apiError{kind: ProblemUnauthorized, detail: "Send a token: Authorization: Bearer inboxd_…"})
				return
			}
			hash := sha256.Sum256([]byte(text))
			wait, end := tries.begin(clientAddress(r), hash)
			if end == nil {
				w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(wait.Seconds()))))
				writeError(w, r, log, &apiError{kind: ProblemTooManyTries, detail: "Too many unknown tokens came from this address. Wait as long as Retry-After says."})
				return
			}
			token, err := store.TokenByHash(r.Context(), hash)
			unknown := errors.Is(err, inbox.ErrNotFound)
			end(err == nil, unknown)
			if unknown {
				w.Header().Set("WWW-Authenticate", `Bearer realm="inboxd", error="invalid_token"`)
				err = &apiError{kind: ProblemUnauthorized, detail: "The token is unknown, revoked or expired."}
			}
			if err != nil {
				writeError(w, r, log, err)
				return
			}
			ctx := context.WithValue(r.Context(), tokenKey{}, token)
			next.ServeHTTP(w, r.WithContext(context.WithValue(ctx, hashKey{}, hash)))
		})
	}
}

// RequireEverything lets requests pass whose token, which RequireToken has found, is for all sources and handlers.
func RequireEverything(log zerolog.Logger) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if token, ok := r.Context().Value(tokenKey{}).(*inbox.OperatorToken); !ok || !token.Scope.Everything() {
				writeError(w, r, log, forbidden("This needs a token that is for all sources and handlers."))
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}

// ListTokens implements the operation.
func (s *server) ListTokens(ctx context.Context, _ ListTokensRequestObject) (ListTokensResponseObject, error) {
	tokens, err := s.store.Tokens(ctx)
	if err != nil {
		return nil, err
	}
	list := ListTokens200JSONResponse{Items: make([]TokenView, len(tokens))}
	for i, t := range tokens {
		list.Items[i] = showToken(t)
	}
	return list, nil
}

// CreateToken implements the operation.
func (s *server) CreateToken(ctx context.Context, request CreateTokenRequestObject) (CreateTokenResponseObject, error) {
	in := request.Body
	t := &inbox.OperatorToken{Name: in.Name, Role: inbox.Role(in.Role), Scope: inbox.Everything(), ExpiresAt: or(in.ExpiresAt, Time{}).Time}
	if in.Sources != nil {
		t.Scope.Sources = in.Sources
	}
	if in.Handlers != nil {
		t.Scope.Handlers = in.Handlers
	}
	if in.ExpiresAt != nil && !in.ExpiresAt.After(time.Now()) {
		return nil, invalid("expires_at", "must lie ahead")
	}
	secret, err := s.store.CreateToken(ctx, actor(ctx), t)
	if err != nil {
		return nil, orNameTaken(err, "token", in.Name)
	}
	return CreateToken201JSONResponse{Token: showToken(t), Secret: secret}, nil
}

// RevokeToken implements the operation.
func (s *server) RevokeToken(ctx context.Context, request RevokeTokenRequestObject) (RevokeTokenResponseObject, error) {
	if err := s.store.RevokeToken(ctx, actor(ctx), request.Name); err != nil {
		return nil, orNotFound(err, "token", request.Name)
	}
	return RevokeToken204Response{}, nil
}

func showToken(t *inbox.OperatorToken) TokenView {
	return TokenView{
		Name: t.Name, Role: Role(t.Role), Sources: t.Scope.Sources, Handlers: t.Scope.Handlers,
		CreatedAt: t.CreatedAt.UTC(), ExpiresAt: someTime(t.ExpiresAt), RevokedAt: someTime(t.RevokedAt), Valid: t.Valid(time.Now()),
	}
}
