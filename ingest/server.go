// Package ingest takes a provider's request in and answers it once its messages are committed: limits,
// verification by the source's sheet, group commit, and the answer in the provider's own words. A 2xx is
// leave to forget, so it is sent only after the commit; a failure of ours is a 503, so that the provider
// sends again and meets the unique key.
package ingest

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/inboxd/inboxd/inbox"
	"github.com/inboxd/inboxd/providers"
)

// Config is what a Server is made of. Store, Snapshots, Configure and Registerer must be set.
type Config struct {
	Store      Store
	Snapshots  Snapshots
	Configure  func(*inbox.Source) (*providers.Verifier, error) // compiles a source's sheet and secrets
	Committed  func()                                           // called after each commit of new messages; must not wait
	Registerer prometheus.Registerer
	Logger     zerolog.Logger

	BodyLimit     int64         // bytes of a body where the source sets no limit; default 1 MiB
	IntakeBytes   int64         // bytes of all requests not answered yet; default 64 MiB
	IntakeCount   int           // requests that wait for a commit; default 4096
	Flushers      int           // commits under way at once; default 2
	BatchRows     int           // messages of one commit; default 256
	BatchBytes    int           // body bytes of one commit; default 1 MiB
	CommitTimeout time.Duration // of one commit and of a caller's wait for it; default 5 s
}

// Server answers POST /in/{source}.
type Server struct {
	committer *committer
	snapshots Snapshots
	configure func(*inbox.Source) (*providers.Verifier, error)
	metrics   *metrics
	log       zerolog.Logger

	bodyLimit     int64
	intakeLimit   int64
	commitTimeout time.Duration
	intake        atomic.Int64 // bytes reserved by requests under way

	sources atomic.Pointer[compiled]
}

// compiled is the sources of one snapshot, ready to verify.
type compiled struct {
	snapshot *inbox.Snapshot
	byName   map[string]*ingress
}

// ingress is one source with its compiled sheet.
type ingress struct {
	source    *inbox.Source
	verifier  *providers.Verifier // nil if the configuration is no longer usable
	bodyLimit int64
}

// New makes a Server; its Run has to run for requests to be answered.
func New(cfg Config) *Server {
	m := newMetrics(cfg.Registerer)
	if cfg.Committed == nil {
		cfg.Committed = func() {}
	}
	s := &Server{
		committer: newCommitter(&committer{
			store: cfg.Store, snapshots: cfg.Snapshots, metrics: m, committed: cfg.Committed,
			intakeCount:   orDefault(cfg.IntakeCount, 4096),
			flushers:      orDefault(cfg.Flushers, 2),
			batchRows:     orDefault(cfg.BatchRows, 256),
			batchBytes:    orDefault(cfg.BatchBytes, 1<<20),
			commitTimeout: orDefault(cfg.CommitTimeout, 5*time.Second),
		}),
		snapshots: cfg.Snapshots, configure: cfg.Configure, metrics: m,
		// Each refusal is counted; the log takes some, or an outage would be told a thousand times a second.
		log:           cfg.Logger.Sample(&zerolog.BurstSampler{Burst: 20, Period: time.Second}),
		bodyLimit:     orDefault(cfg.BodyLimit, 1<<20),
		intakeLimit:   orDefault(cfg.IntakeBytes, 64<<20),
		commitTimeout: orDefault(cfg.CommitTimeout, 5*time.Second),
	}
	s.sources.Store(&compiled{})
	return s
}

func orDefault[T int | int64 | time.Duration](value, fallback T) T {
	if value == 0 {
		return fallback
	}
	return value
}

// Routes adds the server's one route.
func (s *Server) Routes(r chi.Router) {
	r.Post("/in/{source}", s.serve)
}

// Run commits what is submitted until ctx is done and nothing waits any more. Stop the HTTP server first.
func (s *Server) Run(ctx context.Context) error {
	s.committer.run(ctx)
	return nil
}

// serve takes one request in.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	started := time.Now()
	snapshot := s.snapshots.Current()
	if snapshot.Version == 0 {
		// Nothing was ever loaded: that a source is unknown would be a guess, and a 404 may end its messages.
		s.fail(w, "", "database_unavailable", inbox.ErrUnavailable)
		return
	}
	in := s.ingresses(snapshot)[chi.URLParam(r, "source")]
	if in == nil || !in.source.Enabled {
		name, reason := "", "unknown_source" // what is asked for may be anything, and would be a label each
		if in != nil {
			name, reason = in.source.Name, "source_disabled"
		}
		s.metrics.rejected.WithLabelValues(name, reason).Inc()
		http.Error(w, "no such source", http.StatusNotFound)
		return
	}
	name := in.source.Name
	if in.verifier == nil {
		s.fail(w, name, "misconfigured", inbox.ErrUnavailable)
		return
	}

	reserved := r.ContentLength
	if reserved > in.bodyLimit {
		s.tooLarge(w, in)
		return
	}
	if reserved < 0 {
		reserved = in.bodyLimit // the body comes in chunks: it may be as long as it is allowed to be
	}
	if !s.reserve(reserved) {
		s.fail(w, name, "intake_full", errIntakeFull)
		return
	}
	defer s.release(reserved)
	body, err := readBody(w, r, in.bodyLimit)
	if err != nil {
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			s.tooLarge(w, in)
			return
		}
		// The sender went away or stalled; whatever came is not the message.
		s.metrics.rejected.WithLabelValues(name, "body_incomplete").Inc()
		w.Header().Set("Connection", "close")
		http.Error(w, "the body did not arrive whole", http.StatusBadRequest)
		return
	}

	items, err := in.verifier.Verify(&providers.Request{
		Method: r.Method, Path: r.URL.EscapedPath(), RawQuery: r.URL.RawQuery, Header: r.Header, Body: body, Now: started,
	})
	if err != nil {
		s.reject(w, name, err)
		return
	}
	submission := newSubmission(in.source, r, body, items)
	submission.route(snapshot)

	ctx, cancel := context.WithTimeout(r.Context(), s.commitTimeout)
	defer cancel()
	stored, err := s.committer.submit(ctx, submission)
	if err != nil {
		if errors.Is(err, inbox.ErrRefused) {
			s.metrics.rejected.WithLabelValues(name, "refused").Inc()
			s.log.Warn().Str("source", name).Err(err).Msg("a row was refused by the database")
			http.Error(w, "the message can't be stored: its id, type or a key is too long or not valid text", http.StatusUnprocessableEntity)
			return
		}
		s.fail(w, name, reasonOf(err), err)
		return
	}
	s.metrics.latency.Observe(time.Since(started).Seconds())
	s.answer(w, in, stored)
}

// readBody reads the body whole. It never gives back a part of one: the limit is an error.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	limited := http.MaxBytesReader(w, r.Body, limit)
	if r.ContentLength >= 0 {
		body := make([]byte, r.ContentLength)
		_, err := io.ReadFull(limited, body)
		return body, err
	}
	return io.ReadAll(limited)
}

// newSubmission makes one message of each item of a request.
func newSubmission(source *inbox.Source, r *http.Request, body []byte, items []providers.Item) *submission {
	s := &submission{source: source.Name, messages: make([]inbox.Message, len(items))}
	headers := keepHeaders(r.Header, verifiedBy(source, items))
	contentType := r.Header.Get("Content-Type")
	for i, item := range items {
		sum := sha256.Sum256(item.Body)
		s.messages[i] = inbox.Message{
			SourceID: source.ID, MessageID: item.MessageID, MessageType: item.MessageType, EventTime: item.EventTime,
			BizKey: item.BizKey, OrderingKey: item.OrderingKey, ContentType: contentType, Headers: headers, Body: item.Body,
			BodyHash: [16]byte(sum[:16]),
		}
		s.bytes += len(item.Body)
	}
	return s
}

// dropHeaders are not kept: those of the connection (RFC 9110 section 7.6.1), credentials, and what the
// message carries elsewhere.
var dropHeaders = map[string]bool{
	"Connection": true, "Keep-Alive": true, "Proxy-Connection": true, "Te": true, "Trailer": true,
	"Transfer-Encoding": true, "Upgrade": true, "Expect": true,
	"Authorization": true, "Proxy-Authorization": true, "Proxy-Authenticate": true,
	"Cookie": true, "Cookie2": true, "Set-Cookie": true, "Set-Cookie2": true,
	"Api-Key": true, "X-Api-Key": true, "X-Auth-Token": true, "X-Access-Token": true, "X-Authorization": true,
	"Content-Length": true, "Content-Type": true, "Accept-Encoding": true,
}

// verifiedBy returns the id of the secret that verified a request's items, all by the same; "" if none did.
func verifiedBy(source *inbox.Source, items []providers.Item) string {
	if at := items[0].Secret; at >= 0 && at < len(source.SecretInfo) {
		return source.SecretInfo[at].ID
	}
	return ""
}

// keepHeaders writes the headers as lines, sorted by name, their values byte for byte, and in front of them the id of
// the secret that verified them.
func keepHeaders(h http.Header, secret string) []byte {
	names := make([]string, 0, len(h))
	size := len(inbox.SecretLine) + len(secret) + len("\r\n")
	for name, values := range h {
		if !dropHeaders[name] {
			names = append(names, name)
			for _, value := range values {
				size += len(name) + len(value) + len(": \r\n")
			}
		}
	}
	slices.Sort(names)
	lines := make([]byte, 0, size)
	if secret != "" {
		lines = append(append(append(lines, inbox.SecretLine...), secret...), "\r\n"...)
	}
	for _, name := range names {
		for _, value := range h[name] {
			lines = append(append(append(append(lines, name...), ": "...), value...), "\r\n"...)
		}
	}
	return lines
}

// ingresses returns the sources of a snapshot, compiled. A snapshot is compiled once; requests that meet a
// new one together compile it more than once, to the same result.
func (s *Server) ingresses(snapshot *inbox.Snapshot) map[string]*ingress {
	if c := s.sources.Load(); c.snapshot == snapshot {
		return c.byName
	}
	before := s.sources.Load()
	c := &compiled{snapshot: snapshot, byName: make(map[string]*ingress, len(snapshot.Sources))}
	for _, source := range snapshot.Sources {
		if known := before.byName[source.Name]; known != nil && known.source.ID == source.ID &&
			known.source.UpdatedAt.Equal(source.UpdatedAt) && known.source.SecretFault == source.SecretFault &&
			slices.Equal(known.source.Secrets, source.Secrets) { // a file they are read from may have changed
			c.byName[source.Name] = known
			continue
		}
		in := &ingress{source: source, bodyLimit: source.BodyLimit}
		if in.bodyLimit == 0 {
			in.bodyLimit = s.bodyLimit
		}
		verifier, err := s.configureSafely(source)
		if err != nil {
			// It was accepted once, by another release or another set of sheets. The provider gets 503 and
			// keeps its messages until the source is mended.
			s.log.Error().Str("source", source.Name).Err(err).Msg("a source can't be used")
		} else {
			in.verifier = verifier
		}
		c.byName[source.Name] = in
	}
	s.sources.Store(c)
	return c.byName
}

// configureSafely leaves out a source whose secrets are not all there: with what is left of them it might
// verify what nobody signed.
func (s *Server) configureSafely(source *inbox.Source) (*providers.Verifier, error) {
	if source.SecretFault != "" {
		return nil, errors.New(source.SecretFault)
	}
	return s.configure(source)
}

// reserve takes bytes of the intake, if they are free.
func (s *Server) reserve(n int64) bool {
	if s.intake.Add(n) > s.intakeLimit {
		s.intake.Add(-n)
		return false
	}
	s.metrics.intake.Add(float64(n))
	return true
}

func (s *Server) release(n int64) {
	s.intake.Add(-n)
	s.metrics.intake.Sub(float64(n))
}

// answer says 2xx as the provider wants to hear it. The two headers are for senders of our own, who like to
// know which message it became.
func (s *Server) answer(w http.ResponseWriter, in *ingress, stored []inbox.Stored) {
	name := in.source.Name
	accepted := 0
	ids := make([]string, len(stored))
	for i, row := range stored {
		ids[i] = inbox.FormatMessage(row.ID)
		switch {
		case !row.Duplicate:
			accepted++
		case row.DifferentBody:
			s.metrics.duplicates.WithLabelValues(name, "different").Inc()
		default:
			s.metrics.duplicates.WithLabelValues(name, "same").Inc()
		}
	}
	s.metrics.accepted.WithLabelValues(name).Add(float64(accepted))
	duplicate := accepted == 0
	answer := in.verifier.Answer()
	header := w.Header()
	header.Set("Inbox-Message", strings.Join(ids, ","))
	if duplicate {
		header.Set("Inbox-Duplicate", "true")
	}
	if answer.ContentType != "" {
		header.Set("Content-Type", answer.ContentType)
	}
	header.Set("Content-Length", strconv.Itoa(len(answer.Body)))
	w.WriteHeader(answer.Status)
	_, _ = w.Write(answer.Body)
}

// reject answers a request that the sheet refused. The reason is a class; what was expected stays here.
func (s *Server) reject(w http.ResponseWriter, name string, err error) {
	reason, status := "invalid", http.StatusUnauthorized
	if rejected, ok := errors.AsType[*providers.RejectError](err); ok {
		reason = string(rejected.Reason)
		if rejected.Reason.Genuine() {
			// Who sent it is not in doubt, so 401 would send its operators after the secret.
			status = http.StatusUnprocessableEntity
		}
	}
	s.metrics.rejected.WithLabelValues(name, reason).Inc()
	s.log.Info().Str("source", name).Str("reason", reason).Msg("request rejected")
	http.Error(w, reason, status)
}

// tooLarge answers before the body is read, or in the middle of it, and closes the connection: what is left
// of the body is not worth reading.
func (s *Server) tooLarge(w http.ResponseWriter, in *ingress) {
	s.metrics.rejected.WithLabelValues(in.source.Name, "too_large").Inc()
	w.Header().Set("Connection", "close")
	http.Error(w, "the body is larger than "+strconv.FormatInt(in.bodyLimit, 10)+" bytes", http.StatusRequestEntityTooLarge)
}

// retryAfterSeconds is what a provider that honours Retry-After should wait: an outage of ours is mostly a
// restart or a failover.
const retryAfterSeconds = "5"

// fail answers for a failure of ours: send it again.
func (s *Server) fail(w http.ResponseWriter, name, reason string, err error) {
	s.metrics.rejected.WithLabelValues(name, reason).Inc()
	s.log.Warn().Str("source", name).Str("reason", reason).Err(err).Msg("answered 503")
	w.Header().Set("Retry-After", retryAfterSeconds)
	http.Error(w, "not stored, or not known to be: send it again", http.StatusServiceUnavailable)
}

func reasonOf(err error) string {
	switch {
	case errors.Is(err, errIntakeFull):
		return "intake_full"
	case errors.Is(err, context.DeadlineExceeded):
		return "commit_timeout"
	}
	return "database_unavailable"
}
