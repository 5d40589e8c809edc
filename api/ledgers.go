package api

import (
	"context"
	"strings"
	"time"

	"github.com/inboxd/inboxd/inbox"
)

// LedgerStore tells what has happened: to deliveries, to a message, and to all messages with a key.
type LedgerStore interface {
	ListAttempts(ctx context.Context, f inbox.LedgerFilter, after inbox.LedgerPosition, limit int) (inbox.LedgerPage[inbox.AttemptEntry], error)
	ListOutcomes(ctx context.Context, f inbox.LedgerFilter, after inbox.LedgerPosition, limit int) (inbox.LedgerPage[inbox.OutcomeEntry], error)
	Timeline(ctx context.Context, message int64) (*inbox.Timeline, error)
	LookUp(ctx context.Context, within *inbox.Reach, key string, after inbox.DeliveryID, limit int) (inbox.Page[*inbox.MessageState], error)
}

// ListAttempts implements the operation.
func (s *server) ListAttempts(ctx context.Context, request ListAttemptsRequestObject) (ListAttemptsResponseObject, error) {
	p := request.Params
	filter, err := s.ledgerFilter(ctx, p.Message, filterParams{source: p.Source, handler: p.Handler, from: p.From, to: p.To})
	if err != nil {
		return nil, err
	}
	filter.Class, filter.ResponseStatus = inbox.Class(or(p.ErrorClass, "")), or(p.ResponseStatus, 0)
	after, err := parseLedgerCursor("attempts", filter, p.Cursor)
	if err != nil {
		return nil, err
	}
	page, err := s.store.ListAttempts(ctx, filter, after, or(p.Limit, defaultLimit))
	if err != nil {
		return nil, err
	}
	list := ListAttempts200JSONResponse{Items: make([]AttemptEntry, len(page.Items)), Next: formatLedgerCursor("attempts", filter, page.Next)}
	for i, a := range page.Items {
		list.Items[i] = AttemptEntry{
			Delivery: a.DeliveryID.String(), Message: inbox.FormatMessage(a.Message), Handler: a.Handler, Source: a.Source,
			Attempt: showAttempt(a.Attempt),
		}
	}
	return list, nil
}

// ListOutcomes implements the operation.
func (s *server) ListOutcomes(ctx context.Context, request ListOutcomesRequestObject) (ListOutcomesResponseObject, error) {
	p := request.Params
	filter, err := s.ledgerFilter(ctx, p.Message, filterParams{source: p.Source, handler: p.Handler, from: p.From, to: p.To})
	if err != nil {
		return nil, err
	}
	filter.Result, filter.ResponseStatus = inbox.Status(or(p.Result, "")), or(p.ResponseStatus, 0)
	after, err := parseLedgerCursor("outcomes", filter, p.Cursor)
	if err != nil {
		return nil, err
	}
	page, err := s.store.ListOutcomes(ctx, filter, after, or(p.Limit, defaultLimit))
	if err != nil {
		return nil, err
	}
	list := ListOutcomes200JSONResponse{Items: make([]OutcomeEntry, len(page.Items)), Next: formatLedgerCursor("outcomes", filter, page.Next)}
	for i, o := range page.Items {
		list.Items[i] = showOutcomeEntry(o)
	}
	return list, nil
}

func showOutcomeEntry(o inbox.OutcomeEntry) OutcomeEntry {
	entry := OutcomeEntry{
		Delivery: someDelivery(o.DeliveryID), Message: inbox.FormatMessage(o.Message), Handler: some(o.Handler), Source: o.Source,
		ReceivedAt: o.ReceivedAt.UTC(), ClaimedAt: someTime(o.ClaimedAt), FinishedAt: o.FinishedAt.UTC(), Result: Status(o.Result),
		ReplayNo: o.ReplayNo, ClaimSeq: o.ClaimSeq, Attempts: o.Attempts, MaxRetryCount: o.MaxRetryCount,
		ResponseStatus: some(o.ResponseStatus), Duration: someDuration(o.Duration), LastError: some(o.LastError),
	}
	if o.DupOf != 0 {
		entry.DuplicateOf = some(inbox.FormatMessage(o.DupOf))
	}
	return entry
}

// someDelivery returns nil for what is no delivery: the message reached no handler.
func someDelivery(id inbox.DeliveryID) *string {
	if id.Handler == 0 {
		return nil
	}
	return some(id.String())
}

// ledgerFilter resolves the names, and the message's number.
func (s *server) ledgerFilter(ctx context.Context, message *string, p filterParams) (inbox.LedgerFilter, error) {
	f, err := s.filter(ctx, p)
	if err != nil {
		return inbox.LedgerFilter{}, err
	}
	filter := inbox.LedgerFilter{SourceID: f.SourceID, HandlerID: f.HandlerID, From: f.From, To: f.To, Within: f.Within}
	if message != nil {
		if filter.Message, err = messageNumber(*message); err != nil {
			return filter, invalid("message", "must be a message's number")
		}
	}
	return filter, nil
}

// LookUp implements the operation.
func (s *server) LookUp(ctx context.Context, request LookUpRequestObject) (LookUpResponseObject, error) {
	p := request.Params
	after, err := parseCursor("lookup "+p.Key, inbox.Filter{}, p.Cursor)
	if err != nil {
		return nil, err
	}
	page, err := s.store.LookUp(ctx, within(ctx), p.Key, after, or(p.Limit, defaultLimit))
	if err != nil {
		return nil, err
	}
	list := LookUp200JSONResponse{Items: make([]Found, len(page.Items)), Next: formatCursor("lookup "+p.Key, inbox.Filter{}, page.Next)}
	for i, m := range page.Items {
		list.Items[i] = Found{Message: showMessage(m), Deliveries: showDeliveries(m.Deliveries)}
	}
	return list, nil
}

// GetTimeline implements the operation.
func (s *server) GetTimeline(ctx context.Context, request GetTimelineRequestObject) (GetTimelineResponseObject, error) {
	id, err := messageNumber(request.ID)
	if err != nil {
		return nil, orNotFound(err, "message", request.ID)
	}
	t, err := s.store.Timeline(ctx, id)
	if err != nil {
		return nil, orNotFound(err, "message", request.ID)
	}
	t.Limit(within(ctx), scope(ctx))
	timeline := GetTimeline200JSONResponse{
		Message: showMessage(t.Message), Events: make([]Event, len(t.Events)), NotRouted: make([]NotRouted, len(t.NotRouted)),
	}
	for i, e := range t.Events {
		timeline.Events[i] = Event{
			At: e.At.UTC().Truncate(time.Microsecond), Kind: EventKind(e.Kind), Delivery: someDelivery(e.Delivery), Handler: some(e.Handler),
			Detail: some(e.Detail), ClaimSeq: some(e.ClaimSeq), ReplayNo: some(e.ReplayNo), ResponseStatus: some(e.ResponseStatus),
			Duration: someDuration(e.Duration), Class: some(string(e.Class)), Owner: some(e.Owner),
			ResponseBody: some(strings.ToValidUTF8(string(e.ResponseBody), "\uFFFD")),
			Actor:        some(e.Actor.Name), Reason: some(e.Actor.Reason), Note: some(e.Actor.Note),
			Job: someNumber(e.Job),
		}
	}
	for i, n := range t.NotRouted {
		timeline.NotRouted[i] = NotRouted{Handler: n.Handler, Reason: n.Reason}
	}
	return timeline, nil
}
