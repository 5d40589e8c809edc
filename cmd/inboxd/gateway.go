package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/inboxd/inboxd/api"
	"github.com/inboxd/inboxd/inbox"
	"github.com/inboxd/inboxd/ingest"
	"github.com/inboxd/inboxd/internal/egress"
	"github.com/inboxd/inboxd/internal/httpserver"
	"github.com/inboxd/inboxd/postgres"
	"github.com/inboxd/inboxd/processor"
	"github.com/inboxd/inboxd/providers"
)

// adminConnections are apart from those of ingest and processor: a slow list can't hold up a commit.
const adminConnections = 4

// gateway is one instance of inboxd. Everything it needs is made by newGateway, so that a test can run
// several in one process.
type gateway struct {
	settings  gatewayFlags
	log       zerolog.Logger
	owner     string // the instance's name, unique among the instances
	db        *postgres.DB
	adminDB   *postgres.DB
	healthDB  *postgres.DB
	snapshots *postgres.Snapshots
	hints     *postgres.Hints
	registry  *prometheus.Registry
	public    net.Listener // nil without the role ingest
	admin     net.Listener
	publicTLS *tls.Config
	adminTLS  *tls.Config
	ingest    *ingest.Server       // nil without the role ingest
	processor *processor.Processor // nil without the role processor
	leader    *processor.Leader    // nil without the role processor
	jobs      *processor.Jobs      // nil without the role processor
	catalog   *providers.Catalog
	dialer    *egress.Dialer // to handlers
	forwarder *processor.Forwarder
	health    *health
}

// gatewayConfig is what a gateway is made of.
type gatewayConfig struct {
	DatabaseURL string
	Settings    gatewayFlags
	Log         zerolog.Logger
	Store       ingest.Store // nil means the database; a benchmark leaves it out
}

// newGateway opens the listeners and makes the parts. It doesn't wait for the database: while that is away
// the gateway runs, answers 503 and says that it is not ready.
func newGateway(ctx context.Context, cfg gatewayConfig) (_ *gateway, err error) {
	settings, log := cfg.Settings, cfg.Log
	if err := settings.check(); err != nil {
		return nil, err
	}
	g := &gateway{settings: settings, log: log, owner: newOwner(), registry: prometheus.NewRegistry()}
	defer func() {
		if err != nil {
			g.close()
		}
	}()
	g.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if g.publicTLS, err = loadTLS(settings.TLSCert, settings.TLSKey); err != nil {
		return nil, err
	}
	if g.adminTLS, err = loadTLS(settings.AdminTLSCert, settings.AdminTLSKey); err != nil {
		return nil, err
	}
	if g.catalog, err = providers.Embedded(); err != nil {
		return nil, err
	}
	secrets, err := settings.secrets()
	if err != nil {
		return nil, err
	}
	if g.db, err = postgres.Open(ctx, cfg.DatabaseURL, settings.Connections, postgres.WithSecrets(secrets)); err != nil {
		return nil, err
	}
	if g.adminDB, err = postgres.Open(ctx, cfg.DatabaseURL, adminConnections, postgres.WithSecrets(secrets)); err != nil {
		return nil, err
	}
	// One of its own: while slow lists have all of the API's, the instance still takes messages, so it must say so.
	if g.healthDB, err = postgres.Open(ctx, cfg.DatabaseURL, 1); err != nil {
		return nil, err
	}
	policy, err := settings.egress()
	if err != nil {
		return nil, err
	}
	g.dialer = egress.New(policy)
	g.forwarder = processor.NewForwarder(processor.ForwarderConfig{Dial: g.dialer.DialContext, Version: buildVersion()})
	g.snapshots = g.db.Snapshots()
	g.hints = g.db.Hints()
	g.health = &health{db: g.healthDB, snapshots: g.snapshots}
	g.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "inboxd_partitions_missing_total", Help: "Rows that met no partition, so that their writer made the day.",
	}, func() float64 { return float64(g.db.MissedPartitions()) }))

	if g.has("processor") {
		g.processor = processor.New(processor.Config{
			Store: g.db, Snapshots: g.snapshots, Forwarder: g.forwarder, Owner: g.owner, Registerer: g.registry, Logger: log,
			Drain: settings.Drain,
		})
		g.leader = processor.NewLeader(processor.LeaderConfig{
			Store: g.db, Snapshots: g.snapshots, Owner: g.owner, Registerer: g.registry, Logger: log,
		})
		g.jobs = processor.NewJobs(processor.JobsConfig{
			Store: g.adminDB, Leading: g.leader.Leading, Ready: g.committed, Registerer: g.registry, Logger: log,
		})
	}
	if g.has("ingest") {
		store := cfg.Store
		if store == nil {
			store = g.db
		}
		g.ingest = ingest.New(ingest.Config{
			Store: store, Snapshots: g.snapshots, Configure: g.catalog.Configure, Committed: g.committed,
			Registerer: g.registry, Logger: log,
			BodyLimit: settings.BodyLimit, IntakeBytes: settings.IntakeBytes, IntakeCount: settings.IntakeCount,
			Flushers: settings.Flushers, BatchRows: settings.BatchRows, CommitTimeout: settings.CommitTimeout,
		})
		if g.public, err = net.Listen("tcp", settings.Listen); err != nil {
			return nil, fmt.Errorf("open the public listener: %w", err)
		}
	}
	if g.admin, err = net.Listen("tcp", settings.AdminListen); err != nil {
		return nil, fmt.Errorf("open the operators' listener: %w", err)
	}
	return g, nil
}

func (g *gateway) has(role string) bool { return slices.Contains(g.settings.Roles, role) }

// committed tells the processors that there is work: this instance's at once, the others' by a hint.
func (g *gateway) committed() {
	if g.processor != nil {
		g.processor.Wake()
	}
	g.hints.Send()
}

// close gives back what newGateway opened and run didn't take over.
func (g *gateway) close() {
	for _, listener := range []net.Listener{g.public, g.admin} {
		if listener != nil {
			_ = listener.Close()
		}
	}
	for _, db := range []*postgres.DB{g.db, g.adminDB, g.healthDB} {
		if db != nil {
			db.Close()
		}
	}
}

// run serves until ctx is done, and then stops in order: not ready, requests finished, what they queued
// committed; attempts finished and recorded; connections closed.
func (g *gateway) run(ctx context.Context) error {
	defer g.close()
	if err := g.snapshots.Refresh(ctx); err != nil {
		g.log.Warn().Err(err).Msg("the database can't be read yet; has `inboxd migrate up` run?")
	}
	g.warnOfSecrets(ctx)
	group, ctx := errgroup.WithContext(ctx)
	context.AfterFunc(ctx, g.health.drain)

	group.Go(func() error { return g.snapshots.Run(ctx) })
	group.Go(func() error { return g.hints.Run(ctx) })
	if g.ingest != nil {
		// The flushers outlive the requests that wait for them.
		flush, stopFlush := context.WithCancel(context.WithoutCancel(ctx))
		group.Go(func() error { return g.ingest.Run(flush) })
		group.Go(func() error {
			defer stopFlush()
			return httpserver.Serve(ctx, httpserver.Config{
				Listener: g.public, Handler: g.publicRoutes(), TLS: g.publicTLS, DrainDelay: g.settings.DrainDelay,
			})
		})
	}
	if g.processor != nil {
		group.Go(func() error { return g.processor.Run(ctx) })
		group.Go(func() error { return g.leader.Run(ctx) })
		group.Go(func() error { return g.jobs.Run(ctx) })
		group.Go(func() error { return g.hints.Listen(ctx, g.processor.Wake) })
	}
	group.Go(func() error {
		return httpserver.Serve(ctx, httpserver.Config{
			Listener: g.admin, Handler: g.adminRoutes(ctx.Done()), TLS: g.adminTLS, DrainDelay: g.settings.DrainDelay,
		})
	})
	g.log.Info().Strs("roles", g.settings.Roles).Str("version", buildVersion()).Stringer("admin", g.admin.Addr()).Msg("running")
	err := group.Wait()
	g.log.Info().Msg("stopped")
	return err
}

// warnOfSecrets says what an operator should do about secrets, if anything.
func (g *gateway) warnOfSecrets(ctx context.Context) {
	if g.settings.SecretKeys == "" {
		g.log.Warn().Msg("there is no key to seal secrets with, so none can be stored; `inboxd secrets key` makes one for INBOXD_SECRET_KEYS")
	}
	snapshot := g.snapshots.Current()
	if snapshot.Version == 0 {
		return // the database is away or not migrated, as was said already; don't wait for it again
	}
	if plain, err := g.db.PlainSecrets(ctx); err == nil && plain > 0 {
		g.log.Warn().Int("secrets", plain).Msg("secrets are stored as they were given; `inboxd secrets rekey` seals them")
	}
	for _, h := range snapshot.Handlers {
		if h.SecretFault != "" {
			g.log.Error().Str("handler", h.Name).Str("secret_error", h.SecretFault).Msg("nothing can be sent to a handler")
		}
	}
	for _, s := range snapshot.Sources {
		if s.SecretFault != "" {
			g.log.Error().Str("source", s.Name).Str("secret_error", s.SecretFault).Msg("requests of a source can't be verified")
		}
	}
}

// publicRoutes is all that the public listener answers.
func (g *gateway) publicRoutes() http.Handler {
	r := chi.NewRouter()
	g.ingest.Routes(r)
	g.health.routes(r)
	return r
}

// adminRoutes is all that the operators' listener answers; what lasts ends when draining is closed.
func (g *gateway) adminRoutes(draining <-chan struct{}) http.Handler {
	r := chi.NewRouter()
	g.health.routes(r)
	var metrics http.Handler = promhttp.HandlerFor(g.registry, promhttp.HandlerOpts{})
	tries := api.DefaultTries()
	if g.has("admin") {
		server := api.New(api.Config{
			Store: g.adminDB, Checker: checker{g.catalog, g.adminDB, g.dialer}, Changed: g.changed, Ready: g.committed, Ping: g.ping, Logger: g.log, Version: buildVersion(),
			Instance: g.owner, Tries: tries, Draining: draining,
		})
		r.Mount("/", server)
	}
	if !isLoopback(g.admin.Addr()) {
		// They tell of every handler.
		metrics = api.RequireToken(g.adminDB, tries, g.log)(api.RequireEverything(g.log)(metrics))
	}
	r.Handle("/metrics", metrics)
	return r
}

// changed makes a change of a source or handler effective in this instance at once.
func (g *gateway) changed(ctx context.Context) {
	if err := g.snapshots.Refresh(ctx); err != nil {
		g.log.Warn().Err(err).Msg("the change is not loaded yet")
	}
	if g.processor != nil {
		g.processor.Wake()
	}
}

// ping sends a handler a test delivery from this instance, whatever its roles are.
func (g *gateway) ping(ctx context.Context, h *inbox.Handler) inbox.Result {
	return g.forwarder.Ping(ctx, g.adminDB.ResolveHandler(h))
}

func isLoopback(address net.Addr) bool {
	tcp, ok := address.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// checker refuses sources that no request could be verified for, and handlers that nothing could be sent to.
type checker struct {
	catalog *providers.Catalog
	db      *postgres.DB
	dialer  *egress.Dialer
}

func (c checker) CheckHost(host string) error { return c.dialer.CheckHost(host) }

func (c checker) SignatureHeader(s *inbox.Source) string { return c.catalog.SignatureHeader(s) }

func (c checker) CheckHandler(h *inbox.Handler) error {
	resolved := c.db.ResolveHandler(h)
	if resolved.SecretFault != "" {
		return errors.New(resolved.SecretFault)
	}
	if shown := resolved.Credentials; shown != nil && shown.OAuth2 != nil {
		if u, err := url.Parse(shown.OAuth2.TokenURL); err == nil {
			if err := c.dialer.CheckHost(u.Hostname()); err != nil {
				return &inbox.InvalidError{Field: "credentials.oauth2.token_url", Detail: err.Error()}
			}
		}
	}
	return processor.Check(resolved)
}

func (c checker) Certificate(h *inbox.Handler) *x509.Certificate {
	if resolved := c.db.ResolveHandler(h).Credentials; resolved != nil {
		return processor.Certificate(resolved.TLS)
	}
	return nil
}

func (c checker) CheckSource(s *inbox.Source) error {
	resolved := c.db.ResolveSource(s)
	if resolved.SecretFault != "" {
		return errors.New(resolved.SecretFault)
	}
	_, err := c.catalog.Configure(resolved)
	return err
}

// health answers the probes of load balancers and of those who restart processes.
type health struct {
	db        *postgres.DB
	snapshots *postgres.Snapshots

	mu       sync.Mutex // guards draining and the last answer, which serves for readyCache
	draining bool
	checked  time.Time
	err      error
}

// readyCache bounds what probes cost the database.
const (
	readyCache   = 250 * time.Millisecond
	readyTimeout = time.Second
)

var errDraining = errors.New("draining")

func (h *health) drain() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.draining = true
}

func (h *health) routes(r chi.Router) {
	r.Get("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	r.Get("/readyz", func(w http.ResponseWriter, r *http.Request) {
		if err := h.ready(r.Context()); err != nil {
			text := "the database is away, read-only or not migrated"
			if errors.Is(err, errDraining) {
				text = err.Error()
			}
			http.Error(w, text, http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ready")
	})
}

// ready asks the database at most every readyCache.
func (h *health) ready(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.draining {
		return errDraining
	}
	if time.Since(h.checked) > readyCache {
		ctx, cancel := context.WithTimeout(ctx, readyTimeout)
		defer cancel()
		h.err = h.db.Ready(ctx)
		if h.err == nil && h.snapshots.Current().Version == 0 {
			h.err = inbox.ErrUnavailable
		}
		h.checked = time.Now()
	}
	return h.err
}
