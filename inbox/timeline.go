package inbox

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// EventKind says what happened to a message.
type EventKind string

// The kinds of events.
const (
	EventReceived  EventKind = "received"
	EventVerified  EventKind = "verified"
	EventStored    EventKind = "stored"
	EventUnrouted  EventKind = "unrouted"   // no handler subscribed when it came
	EventDuplicate EventKind = "duplicate"  // another message is the same business fact
	EventRouted    EventKind = "routed"     // a delivery was made
	EventReplayed  EventKind = "replayed"   // an operator made the delivery run again
	EventClaimed   EventKind = "claimed"    // by the processor that holds it, or ended it
	EventFailed    EventKind = "failed"     // an attempt failed
	EventStale     EventKind = "stale"      // an attempt was reported after its claim was lost
	EventParked    EventKind = "parked"     // no retry is left, or none can help
	EventDone      EventKind = "done"       // the handler took it, or an operator said that it is done
	EventDiscarded EventKind = "discarded"  // an operator gave it up, or its handler was deleted
	EventDue       EventKind = "due"        // the next attempt; it may lie ahead
	EventActed     EventKind = "acted"      // an operator retried, finished, discarded or replayed it
	EventLeaseEnds EventKind = "lease_ends" // the claim is taken back then, if nobody has reported
)

// Event is one line of a message's timeline. Zero values don't apply.
type Event struct {
	At             time.Time
	Kind           EventKind
	Delivery       DeliveryID
	Handler        string // its name
	Detail         string // for people
	ClaimSeq       int64
	ReplayNo       int
	ResponseStatus int
	Duration       time.Duration
	Class          Class
	Owner          string
	ResponseBody   []byte // the first KB
	Actor          Actor  // of EventActed; the detail is the action
	Job            int64  // of EventActed: the job that did it; 0 for an operator's own act
}

// NotRouted says why a handler has no delivery of a message, by what it subscribes to now.
type NotRouted struct {
	Handler string
	Reason  string
}

// Timeline is everything that is known to have happened to a message, in order of time.
type Timeline struct {
	Message   *MessageState
	Events    []Event
	NotRouted []NotRouted
}

// NewTimeline tells a message's story from its state, its ledgers, oldest first, and the handlers as they
// are now. An outcome of no handler tells that it reached none.
func NewTimeline(m *MessageState, attempts []AttemptEntry, outcomes []OutcomeEntry, acts []AuditEntry, now *Snapshot) *Timeline {
	t := &Timeline{Message: m}
	at := m.ReceivedAt
	t.add(Event{At: at, Kind: EventReceived, Detail: fmt.Sprintf("%d bytes at source %s", m.BodySize, m.Source)})
	t.add(Event{At: at, Kind: EventVerified, Detail: howVerified(SecretID(m.Headers), now.SourceByID(m.SourceID))})
	t.add(Event{At: at, Kind: EventStored, Detail: fmt.Sprintf("as message %d", m.ID)})
	runs := t.addRuns(m, attempts, outcomes)
	for _, o := range outcomes {
		t.addOutcome(o)
	}
	for _, a := range attempts {
		e := Event{
			At: a.FinishedAt, Kind: EventFailed, Delivery: a.DeliveryID, Handler: a.Handler, Detail: a.Error, ClaimSeq: a.ClaimSeq,
			ReplayNo: a.ReplayNo, ResponseStatus: a.ResponseStatus, Duration: a.Duration, Class: a.Class, Owner: a.Owner, ResponseBody: a.ResponseBody,
		}
		if a.Stale {
			e.Kind = EventStale
		}
		t.add(e)
	}
	for _, d := range m.Deliveries {
		t.addLive(d, attempts)
	}
	for _, act := range acts {
		t.addAct(act)
	}
	slices.SortStableFunc(t.Events, func(a, b Event) int { return a.At.Compare(b.At) })
	for _, h := range now.Handlers {
		if !runs[h.ID] {
			t.NotRouted = append(t.NotRouted, NotRouted{Handler: h.Name, Reason: whyNot(m, h)})
		}
	}
	return t
}

// howVerified says what proved the message, by the id of the secret that did and its source as it is now.
func howVerified(secret string, source *Source) string {
	by := ""
	if secret != "" {
		by = "by the secret " + secret
		if source != nil && !slices.ContainsFunc(source.SecretInfo, func(i SecretInfo) bool { return i.ID == secret }) {
			by += ", which the source has no more"
		}
	}
	switch {
	case source == nil && secret == "":
		return "nothing is known of how: the source was deleted"
	case source == nil:
		return by
	case secret != "":
		return by + ", as the provider " + source.Provider + " asks (the source's provider now)"
	case source.Provider == "none":
		return "by nothing: the source's provider is none now"
	}
	return "as the provider " + source.Provider + " asks (the source's provider now); which secret it was is not kept"
}

func (t *Timeline) add(e Event) { t.Events = append(t.Events, e) }

// addRuns adds how each run of each delivery began: by its coming, or by a replay. It returns the handlers
// that had one.
func (t *Timeline) addRuns(m *MessageState, attempts []AttemptEntry, outcomes []OutcomeEntry) map[int64]bool {
	type run struct {
		id DeliveryID
		no int
	}
	begun, handlers := map[run]Event{}, map[int64]bool{}
	see := func(id DeliveryID, handler string, no int, by time.Time) {
		if id.Handler == 0 {
			return
		}
		handlers[id.Handler] = true
		r := run{id, no}
		if e, ok := begun[r]; !ok || by.Before(e.At) {
			begun[r] = Event{At: by, Kind: EventReplayed, Delivery: id, Handler: handler, ReplayNo: no, Detail: "at this time or shortly before"}
		}
	}
	for _, a := range attempts {
		see(a.DeliveryID, a.Handler, a.ReplayNo, a.FinishedAt.Add(-a.Duration))
	}
	for _, o := range outcomes {
		by := o.FinishedAt
		if !o.ClaimedAt.IsZero() {
			by = o.ClaimedAt
		}
		see(o.DeliveryID, o.Handler, o.ReplayNo, by)
	}
	for _, d := range m.Deliveries {
		if d.Status.Finished() {
			continue // its outcome told
		}
		by := d.NextRetryTime
		switch {
		case !d.ClaimedAt.IsZero():
			by = d.ClaimedAt
		case by.IsZero():
			by = m.ReceivedAt
		}
		see(d.DeliveryID, d.Handler, d.ReplayNo, by)
	}
	for _, r := range slices.SortedFunc(maps.Keys(begun), func(a, b run) int {
		return cmp.Or(cmp.Compare(a.id.Handler, b.id.Handler), cmp.Compare(a.no, b.no))
	}) {
		e := begun[r]
		if r.no == 0 {
			e.At, e.Kind, e.Detail = m.ReceivedAt, EventRouted, "the handler subscribed when the message came"
		}
		t.add(e)
	}
	return handlers
}

func (t *Timeline) addOutcome(o OutcomeEntry) {
	e := Event{
		At: o.FinishedAt, Delivery: o.DeliveryID, Handler: o.Handler, Detail: o.LastError, ClaimSeq: o.ClaimSeq, ReplayNo: o.ReplayNo,
		ResponseStatus: o.ResponseStatus, Duration: o.Duration,
	}
	switch o.Result {
	case Unrouted:
		e.Kind, e.Detail = EventUnrouted, "no handler subscribed when it came"
	case Duplicate:
		e.Kind, e.Detail = EventDuplicate, fmt.Sprintf("message %d has its business key", o.DupOf)
	case Done:
		e.Kind = EventDone
	default:
		e.Kind = EventDiscarded
	}
	if !o.ClaimedAt.IsZero() {
		claimed := e
		claimed.At, claimed.Kind, claimed.Detail, claimed.ResponseStatus, claimed.Duration = o.ClaimedAt, EventClaimed, "", 0, 0
		t.add(claimed)
	}
	t.add(e)
}

func (t *Timeline) addAct(a AuditEntry) {
	e := Event{At: a.At, Kind: EventActed, Detail: string(a.Action), Actor: a.Actor, Job: a.Job}
	if a.HandlerID != 0 {
		e.Delivery = DeliveryID{Message: a.Message, Handler: a.HandlerID}
	}
	for _, d := range t.Message.Deliveries {
		if d.DeliveryID == e.Delivery {
			e.Handler = d.Handler
		}
	}
	t.add(e)
}

// addLive adds where an unfinished delivery stands.
func (t *Timeline) addLive(d DeliveryState, attempts []AttemptEntry) {
	e := Event{Delivery: d.DeliveryID, Handler: d.Handler, ClaimSeq: d.ClaimSeq, ReplayNo: d.ReplayNo}
	switch d.Status {
	case Processing:
		e.At, e.Kind, e.Owner = d.ClaimedAt, EventClaimed, d.Owner
		t.add(e)
		e.At, e.Kind = d.LeaseUntil, EventLeaseEnds
	case ManualRequired:
		e.At, e.Kind, e.Detail = t.Message.ReceivedAt, EventParked, d.LastError
		for _, a := range attempts {
			if a.DeliveryID == d.DeliveryID && a.ClaimSeq == d.ClaimSeq && !a.Stale {
				e.At = a.FinishedAt
			}
		}
	case Pending, Failed:
		e.At, e.Kind, e.Detail = d.NextRetryTime, EventDue, fmt.Sprintf("retry %d of %d", d.RetryCount, d.MaxRetryCount)
		if d.RetryCount == 0 {
			e.Detail = "the first attempt"
		}
	default:
		return
	}
	t.add(e)
}

// whyNot says why a handler has no delivery of the message.
func whyNot(m *MessageState, h *Handler) string {
	switch {
	case !matchesAny(h.Sources, m.Source):
		return fmt.Sprintf("it doesn't subscribe to the source %s", m.Source)
	case !matchesAny(h.MessageTypes, m.MessageType):
		return fmt.Sprintf("it doesn't subscribe to the type %q", m.MessageType)
	case h.CreatedAt.After(m.ReceivedAt):
		return "it subscribes, but was registered after the message came"
	case h.UpdatedAt.After(m.ReceivedAt):
		return "it subscribes now, and was changed after the message came"
	}
	return "it subscribes; what it had of the message is no longer in the ledger"
}
