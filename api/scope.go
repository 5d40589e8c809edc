package api

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/inboxd/inboxd/inbox"
)

// ReachStore knows what is in a scope.
type ReachStore interface {
	// Reach returns nil for a scope that leaves nothing out.
	Reach(ctx context.Context, scope inbox.Scope) (*inbox.Reach, error)
	// SourceOf returns the number of a message's source.
	SourceOf(ctx context.Context, message int64) (int64, error)
}

type reachKey struct{}

// within returns what the token of a request may see and act on; nil is everything.
func within(ctx context.Context) *inbox.Reach {
	reach, _ := ctx.Value(reachKey{}).(*inbox.Reach)
	return reach
}

// scope returns what the token of a request is for.
func scope(ctx context.Context) inbox.Scope {
	if token, ok := ctx.Value(tokenKey{}).(*inbox.OperatorToken); ok {
		return token.Scope
	}
	return inbox.Scope{}
}

// enter puts the reach of a token that is for some sources or handlers only into the context, and refuses a request
// whose path names what is out of reach, as if it weren't there. It is the one place for all paths below /sources,
// /handlers, /messages, /deliveries and /jobs; lists and bodies are left to their operations.
func (s *server) enter(ctx context.Context, r *http.Request, request any) (context.Context, error) {
	scope := scope(ctx)
	if scope.Everything() {
		return ctx, nil
	}
	reach, err := s.store.Reach(ctx, scope)
	if err != nil {
		return ctx, err
	}
	ctx = context.WithValue(ctx, reachKey{}, reach)
	kind, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, prefix+"/"), "/")
	switch kind {
	case "sources":
		if name := pathText(request, "Name"); name != "" && !scope.Source(name) {
			return ctx, notFound("source", name)
		}
	case "handlers":
		if name := pathText(request, "Name"); name != "" && !scope.Handler(name) {
			return ctx, notFound("handler", name)
		}
	case "messages":
		if text := pathText(request, "ID"); text != "" {
			id, err := messageNumber(text)
			if err == nil {
				err = s.reaches(ctx, id)
			}
			return ctx, orNotFound(err, "message", text)
		}
	case "deliveries":
		if text := pathText(request, "ID"); text != "" {
			id, err := deliveryID(text)
			if err == nil && !reach.Handler(id.Handler) {
				err = inbox.ErrNotFound
			}
			if err == nil {
				err = s.reaches(ctx, id.Message)
			}
			return ctx, orNotFound(err, "delivery", text)
		}
	case "jobs":
		if text := pathText(request, "ID"); text != "" {
			id, err := jobNumber(text)
			if err == nil {
				err = s.owns(ctx, id)
			}
			return ctx, orNotFound(err, "job", text)
		}
	}
	return ctx, nil
}

// ownJobs returns whose jobs a token that is for some only sees, its own; 0 is everybody's. What a job acts on
// would not tell: its filter can choose from everything.
func ownJobs(ctx context.Context) int64 {
	if within(ctx) == nil {
		return 0
	}
	return actor(ctx).TokenID
}

// owns fails with ErrNotFound for a job of somebody else.
func (s *server) owns(ctx context.Context, job int64) error {
	j, err := s.store.Job(ctx, job)
	if err == nil && j.By.TokenID != ownJobs(ctx) {
		return inbox.ErrNotFound
	}
	return err
}

// pathText returns a parameter of the path of a generated request struct; "" if it has none of that name.
func pathText(request any, field string) string {
	if value := reflect.ValueOf(request).FieldByName(field); value.IsValid() && value.Kind() == reflect.String {
		return value.String()
	}
	return ""
}

// reaches fails with ErrNotFound for a message of a source that is out of reach.
func (s *server) reaches(ctx context.Context, message int64) error {
	source, err := s.store.SourceOf(ctx, message)
	if err == nil && !within(ctx).Source(source) {
		return inbox.ErrNotFound
	}
	return err
}

// checkNewName refuses a name that the token isn't for: whoever made the source or handler wouldn't see it.
func checkNewName(in func(string) bool, name string, globs []string) error {
	if in(name) {
		return nil
	}
	return forbidden(fmt.Sprintf("The token is for names that match %s; %q doesn't.", strings.Join(globs, " or "), name))
}

// checkSubscriptions refuses a handler that gets messages of sources that the token isn't for: whoever may set its URL
// would read them, whoever knows its signing secret could forge them, and a pause would hold them up.
func checkSubscriptions(scope inbox.Scope, sources []string) error {
	if scope.AllSources() {
		return nil
	}
	if i := slices.IndexFunc(sources, func(name string) bool { return name == "*" || !scope.Source(name) }); i >= 0 {
		return forbidden("The handler gets messages of sources that the token isn't for, so the token may not create, change, pause or delete it.")
	}
	return nil
}

// checkReference refuses a reference by a token that is for some only: what it reads is the instance's, and could be
// another one's secret.
func checkReference(ctx context.Context, secret inbox.Secret) error {
	if secret.Reference() && !scope(ctx).Everything() {
		return forbidden("A reference reads a variable or file of the instance, so it needs a token that is for all sources and handlers; this one is for some.")
	}
	return nil
}

// checkCredentials does the same for each secret of a handler's credentials.
func checkCredentials(ctx context.Context, c *inbox.Credentials) error {
	if c == nil {
		return nil
	}
	_, err := c.Map(func(secret inbox.Secret) (inbox.Secret, error) { return secret, checkReference(ctx, secret) })
	return err
}
