package inbox

import (
	"encoding/json"
	"path"
	"slices"
	"time"
)

// Source is a registered ingress: POST /in/{Name}.
type Source struct {
	ID        int64
	Name      string          // lower-case letters, digits, "-", "_"; unique among sources that are not deleted
	Provider  string          // the sheet that verifies its requests
	Variant   string          // the sheet's variant; "" if the sheet has one only
	Settings  json.RawMessage // what the sheet lets a source configure, a JSON object
	Secrets   []Secret        // any of them may have signed a request; those that have ended are left out
	BodyLimit int64           // bytes of a request's body; 0 takes the server's default
	Enabled   bool            // a disabled source answers 404
	CreatedAt time.Time

	// SecretFault says why the secrets can't be used: a key or what a reference names is missing. Nothing is
	// verified with any of them then. "" if they can; it repeats no secret.
	SecretFault string

	// SecretInfo has what is known of each of the secrets. Where a source is changed it need not fit them: it is
	// found by their text, and a new one is given an id.
	SecretInfo []SecretInfo

	UpdatedAt time.Time
}

// Handler is a registered downstream: the URL that gets the messages it subscribes to.
type Handler struct {
	ID           int64
	Name         string   // as a source's
	URL          string   // http or https
	Sources      []string // names of the sources it subscribes to; "*" is every one
	MessageTypes []string // globs of message types (path.Match); "*" is every one, "" one without a type

	// Secrets sign what it is sent, Standard Webhooks; all of them sign while a secret is rotated.
	Secrets     []Secret
	SecretFault string       // as a source's; nothing is sent then
	SecretInfo  []SecretInfo // as a source's

	Credentials *Credentials // nil for none

	Concurrency       int           // requests under way at once in one instance, 1 to 1000
	Timeout           time.Duration // of one attempt, 1 s to 10 min
	MaxRetryCount     int           // retries after the first attempt, 0 to 100
	Backoff           Backoff
	PermanentStatuses []int // answers that no retry can cure: parked at once
	Paused            bool  // nothing is claimed; the backlog is kept
	CreatedAt         time.Time
	UpdatedAt         time.Time
}

// leaseMargin is what a claim outlives its attempt by: the time to write the result back.
const leaseMargin = 15 * time.Second

// Lease returns how long a claim of the handler's deliveries holds: its timeout and the time to record.
func (h *Handler) Lease() time.Duration { return h.Timeout + leaseMargin }

// Subscribes reports whether the handler wants messages of this type from this source.
func (h *Handler) Subscribes(source, messageType string) bool {
	return matchesAny(h.Sources, source) && matchesAny(h.MessageTypes, messageType)
}

// matchesAny reports whether name matches one of the globs. A malformed glob matches nothing; it is
// refused where the handler is registered.
func matchesAny(globs []string, name string) bool {
	return slices.ContainsFunc(globs, func(glob string) bool {
		if glob == "*" {
			// path.Match stops a star at "/"; a lone star means everything.
			return true
		}
		ok, err := path.Match(glob, name)
		return err == nil && ok
	})
}

// Snapshot is every source and handler as of one version, read in one transaction. It is immutable.
type Snapshot struct {
	Version  int64 // grows with each change of a source or handler
	Sources  []*Source
	Handlers []*Handler // paused ones too, deleted ones not
}

// Source returns the source of that name, or nil.
func (s *Snapshot) Source(name string) *Source {
	for _, source := range s.Sources {
		if source.Name == name {
			return source
		}
	}
	return nil
}

// SourceByID returns the source of that number, or nil.
func (s *Snapshot) SourceByID(id int64) *Source {
	for _, source := range s.Sources {
		if source.ID == id {
			return source
		}
	}
	return nil
}

// Handler returns the handler of that number, or nil.
func (s *Snapshot) Handler(id int64) *Handler {
	for _, handler := range s.Handlers {
		if handler.ID == id {
			return handler
		}
	}
	return nil
}

// Route returns the handlers that subscribe to a message of this type from this source. Paused ones are
// among them: they get it when they resume.
func (s *Snapshot) Route(source, messageType string) []Route {
	var routes []Route
	for _, h := range s.Handlers {
		if h.Subscribes(source, messageType) {
			routes = append(routes, Route{HandlerID: h.ID, MaxRetryCount: h.MaxRetryCount})
		}
	}
	return routes
}
