package api

import (
	"context"
	"crypto/sha256"
	"errors"
	"net/http"
	"strings"

	"github.com/rs/zerolog"

	"github.com/inboxd/inboxd/inbox"
)

// TokenStore knows the operators' tokens.
type TokenStore interface {
	// TokenByHash returns the valid token whose text has this SHA-256, or ErrNotFound.
	TokenByHash(ctx context.Context, hash [sha256.Size]byte) (*inbox.OperatorToken, error)
}

type tokenKey struct{}

// actor returns whose token a request came with.
func actor(ctx context.Context) inbox.Actor {
	if token, ok := ctx.Value(tokenKey{}).(*inbox.OperatorToken); ok {
		return inbox.Actor{Name: token.Name, TokenID: token.ID}
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
// token that was revoked ends at once.
func RequireToken(store TokenStore, log zerolog.Logger) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			scheme, text, ok := strings.Cut(r.Header.Get("Authorization"), " ")
			if text = strings.TrimSpace(text); !ok || !strings.EqualFold(scheme, "Bearer") || text == "" {
				w.Header().Set("WWW-Authenticate", `Bearer realm="inboxd"`)
				writeError(w, r, log, &apiError{kind: ProblemUnauthorized, detail: "Send a token: Authorization: Bearer inboxd_…"})
				return
			}
			token, err := store.TokenByHash(r.Context(), sha256.Sum256([]byte(text)))
			if errors.Is(err, inbox.ErrNotFound) {
				w.Header().Set("WWW-Authenticate", `Bearer realm="inboxd", error="invalid_token"`)
				err = &apiError{kind: ProblemUnauthorized, detail: "The token is unknown or revoked."}
			}
			if err != nil {
				writeError(w, r, log, err)
				return
			}
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), tokenKey{}, token)))
		})
	}
}
