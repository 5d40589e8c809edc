package api

import (
	"context"
	"crypto/x509"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/rs/zerolog"

	"github.com/inboxd/inboxd"
	"github.com/inboxd/inboxd/inbox"
)

// Config is what the API works with.
type Config struct {
	Store   Store
	Checker Checker
	// Changed is called after each change of a source or handler, so that this instance works with it at once.
	Changed func(context.Context)
	// Ready is called after deliveries were made PENDING, if it is set.
	Ready func()
	// Ping sends a handler a test delivery, as Forwarder.Ping of package processor does.
	Ping    func(context.Context, *inbox.Handler) inbox.Result
	Logger  zerolog.Logger
	Version string // of the program; answers carry it in the header Inboxd-Version
	// Tries limits failed tries; nil takes a limit of its own.
	Tries *Tries
	// Instance names the one that answers, as claims and the leader's lease do.
	Instance string
	// Draining is closed when the instance stops; streams end then. nil never is.
	Draining <-chan struct{}
}

// Checker refuses what could never work. Its errors are shown to operators, so they repeat no secret.
type Checker interface {
	// CheckSource refuses a source whose requests could not be verified: an unknown provider, variant or
	// setting, a missing or blank secret.
	CheckSource(*inbox.Source) error
	// SignatureHeader names the header in which a source's requests prove themselves; "" for none.
	SignatureHeader(*inbox.Source) string
	// CheckHandler refuses a handler that nothing could be sent to with what it has: a secret that doesn't sign,
	// credentials that can't be used, with an InvalidError where a field is wrong.
	CheckHandler(*inbox.Handler) error
	// Certificate returns the handler's client certificate; nil for none, or one that can't be found.
	Certificate(*inbox.Handler) *x509.Certificate
	// CheckHost refuses the host of a URL that the egress rules never allow, whatever it resolves to.
	CheckHost(host string) error
}

// Store is what the API needs of the database. Its errors are those of package inbox.
type Store interface {
	SourceStore
	HandlerStore
	MessageStore
	JobStore
	LedgerStore
	AuditStore
	StatsStore
	TailStore
	TokenStore
	ReachStore
}

// SourceStore keeps the sources. Names are of those that are not deleted.
type SourceStore interface {
	Sources(ctx context.Context) ([]*inbox.Source, error)
	Source(ctx context.Context, name string) (*inbox.Source, error)
	CreateSource(ctx context.Context, by inbox.Actor, s *inbox.Source) error
	// ChangeSource stores what change makes of the source, unless change fails. No other change comes between.
	ChangeSource(ctx context.Context, by inbox.Actor, name string, change func(*inbox.Source) error) (*inbox.Source, error)
	// ChangeSourceSecrets is ChangeSource for the secrets alone: change is told the database's time, and the audit the action.
	ChangeSourceSecrets(ctx context.Context, by inbox.Actor, action inbox.Action, name string, change func(s *inbox.Source, now time.Time) error) (*inbox.Source, error)
	DeleteSource(ctx context.Context, by inbox.Actor, name string) error
	// SourceByID returns a source, a deleted one too.
	SourceByID(ctx context.Context, id int64) (*inbox.Source, error)
	// SourceNamed returns the number of a source, of a deleted one if no other has the name.
	SourceNamed(ctx context.Context, name string) (int64, error)
}

// HandlerStore keeps the handlers, as SourceStore keeps the sources.
type HandlerStore interface {
	Handlers(ctx context.Context) ([]*inbox.Handler, error)
	Handler(ctx context.Context, name string) (*inbox.Handler, error)
	CreateHandler(ctx context.Context, by inbox.Actor, h *inbox.Handler) error
	ChangeHandler(ctx context.Context, by inbox.Actor, name string, change func(*inbox.Handler) error) (*inbox.Handler, error)
	ChangeHandlerSecrets(ctx context.Context, by inbox.Actor, action inbox.Action, name string, change func(h *inbox.Handler, now time.Time) error) (*inbox.Handler, error)
	DeleteHandler(ctx context.Context, by inbox.Actor, name string) error
	HandlerNamed(ctx context.Context, name string) (int64, error)
}

// MessageStore shows messages and deliveries, and moves the latter. What doesn't fit a delivery's status is
// an ErrConflict.
type MessageStore interface {
	ListMessages(ctx context.Context, f inbox.Filter, after inbox.DeliveryID, limit int) (inbox.Page[*inbox.MessageState], error)
	Message(ctx context.Context, id int64) (*inbox.MessageState, error)
	ListDeliveries(ctx context.Context, f inbox.Filter, after inbox.DeliveryID, limit int) (inbox.Page[inbox.DeliveryState], error)
	Delivery(ctx context.Context, id inbox.DeliveryID) (*inbox.DeliveryDetail, error)
	Retry(ctx context.Context, by inbox.Actor, id inbox.DeliveryID, claimSeq int64) (inbox.DeliveryState, error)
	Finish(ctx context.Context, by inbox.Actor, id inbox.DeliveryID, claimSeq int64, result inbox.Status) (inbox.DeliveryState, error)
	Replay(ctx context.Context, by inbox.Actor, message int64, handlers []int64) ([]inbox.DeliveryState, error)
	// PlanReplay returns what Replay would, and changes nothing.
	PlanReplay(ctx context.Context, by inbox.Actor, message int64, handlers []int64) ([]inbox.DeliveryState, error)
}

// prefix is the server's path in openapi.yaml.
const prefix = "/api/v1"

type server struct {
	store   Store
	checker Checker
	changed func(context.Context)
	ready   func()
	ping    func(context.Context, *inbox.Handler) inbox.Result
	log     zerolog.Logger

	version, instance string

	draining <-chan struct{}
	tails    tails
}

// New returns the operators' API: all operations of openapi.yaml under /api/v1, the contract itself at
// /openapi.yaml, and as a page for people at /docs.
func New(c Config) http.Handler {
	s := &server{store: c.Store, checker: c.Checker, changed: c.Changed, ready: c.Ready, ping: c.Ping, log: c.Logger, version: c.Version, instance: c.Instance}
	if c.Tries == nil {
		c.Tries = DefaultTries()
	}
	s.draining = c.Draining
	r := chi.NewRouter()
	r.Use(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			// Nothing here is for caches: an answer can hold a payload or, once, a secret.
			w.Header().Set("Cache-Control", "no-store")
			w.Header().Set("X-Content-Type-Options", "nosniff")
			if c.Version != "" {
				w.Header().Set("Inboxd-Version", c.Version)
			}
			next.ServeHTTP(w, r)
		})
	})
	r.NotFound(func(w http.ResponseWriter, r *http.Request) {
		s.fail(w, r, &apiError{kind: ProblemNotFound, detail: "There is no such path; /docs lists those that there are."})
	})
	r.MethodNotAllowed(func(w http.ResponseWriter, r *http.Request) {
		s.fail(w, r, &apiError{kind: ProblemMethodNotAllowed, detail: "The path doesn't take this method."})
	})
	r.Get("/openapi.yaml", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/yaml")
		_, _ = w.Write(inboxd.OpenAPI)
	})
	r.Get("/docs", s.showDocs)
	r.Group(func(r chi.Router) {
		// The token comes first: without one, not even a bad parameter is told.
		r.Use(RequireToken(s.store, c.Tries, s.log), s.readBody)
		// The last of the middleware is asked first.
		HandlerWithOptions(NewStrictHandlerWithOptions(s, []StrictMiddlewareFunc{s.checkRequest, s.logChange, s.authorize}, StrictHTTPServerOptions{
			RequestErrorHandlerFunc: s.fail, ResponseErrorHandlerFunc: s.fail,
		}), ChiServerOptions{BaseURL: prefix, BaseRouter: r, ErrorHandlerFunc: s.fail})
	})
	return r
}

// logChange logs who did what; why is in the audit.
func (s *server) logChange(next StrictHandlerFunc, operation string) StrictHandlerFunc {
	return func(ctx context.Context, w http.ResponseWriter, r *http.Request, request any) (any, error) {
		response, err := next(ctx, w, r, request)
		if err == nil && r.Method != http.MethodGet {
			s.log.Info().Str("operation", operation).Str("path", r.URL.Path).Str("token", actor(ctx).Name).Msg("an operator acted")
		}
		return response, err
	}
}

// reloadTimeout bounds Changed: the change is stored, and the other instances poll for it anyway.
const reloadTimeout = 3 * time.Second

// reload makes a change effective in this instance, even if the caller has hung up.
func (s *server) reload(ctx context.Context) {
	if s.changed == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reloadTimeout)
	defer cancel()
	s.changed(ctx)
}

func (s *server) wake() {
	if s.ready != nil {
		s.ready()
	}
}
