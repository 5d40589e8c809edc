package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strings"
	"time"

	"github.com/inboxd/inboxd/inbox"
)

// defaultLimit is a page's length.
const defaultLimit = 50

// ListMessages implements the operation.
func (s *server) ListMessages(ctx context.Context, request ListMessagesRequestObject) (ListMessagesResponseObject, error) {
	p := request.Params
	filter, err := s.filter(ctx, filterParams{
		source: p.Source, handler: p.Handler, messageType: p.MessageType, messageID: p.MessageID, bizKey: p.BizKey,
		orderingKey: p.OrderingKey, from: p.From, to: p.To,
	})
	if err != nil {
		return nil, err
	}
	filter.Status = inbox.Status(or(p.Status, ""))
	after, err := parseCursor("messages", filter, p.Cursor)
	if err != nil {
		return nil, err
	}
	page, err := s.store.ListMessages(ctx, filter, after, or(p.Limit, defaultLimit))
	if err != nil {
		return nil, err
	}
	list := ListMessages200JSONResponse{Items: make([]Message, len(page.Items)), Next: formatCursor("messages", filter, page.Next)}
	for i, m := range page.Items {
		list.Items[i] = showMessage(m)
	}
	return list, nil
}

// GetMessage implements the operation.
func (s *server) GetMessage(ctx context.Context, request GetMessageRequestObject) (GetMessageResponseObject, error) {
	id, err := messageNumber(request.ID)
	if err != nil {
		return nil, orNotFound(err, "message", request.ID)
	}
	m, err := s.store.Message(ctx, id)
	if err != nil {
		return nil, orNotFound(err, "message", request.ID)
	}
	signature := ""
	source, err := s.store.SourceByID(ctx, m.SourceID)
	if err == nil {
		signature = s.checker.SignatureHeader(source)
	} else if !errors.Is(err, inbox.ErrNotFound) {
		return nil, err
	}
	m.Limit(within(ctx))
	return GetMessage200JSONResponse{
		Message: showMessage(m), Headers: showHeaders(m.Headers, signature), Body: append([]byte{}, m.Body...), Deliveries: showDeliveries(m.Deliveries),
	}, nil
}

// ReplayMessage implements the operation.
func (s *server) ReplayMessage(ctx context.Context, request ReplayMessageRequestObject) (ReplayMessageResponseObject, error) {
	id, err := messageNumber(request.ID)
	if err != nil {
		return nil, orNotFound(err, "message", request.ID)
	}
	var handlers []int64
	by, replay := actor(ctx), s.store.Replay
	if request.Body != nil {
		if or(request.Body.DryRun, false) {
			replay = s.store.PlanReplay
		}
		by = because(by, &Reason{Reason: request.Body.Reason, Note: request.Body.Note})
		for i, name := range request.Body.Handlers {
			h, err := s.store.Handler(ctx, name)
			if errors.Is(err, inbox.ErrNotFound) || err == nil && !within(ctx).Handler(h.ID) {
				return nil, invalid(fmt.Sprintf("handlers[%d]", i), fmt.Sprintf("no handler has the name %q", name))
			}
			if err != nil {
				return nil, err
			}
			handlers = append(handlers, h.ID)
		}
	}
	deliveries, err := replay(ctx, by, id, handlers)
	if err != nil {
		return nil, orNotFound(err, "message", request.ID)
	}
	s.wake()
	return ReplayMessage200JSONResponse{Deliveries: showDeliveries(deliveries)}, nil
}

// ListDeliveries implements the operation.
func (s *server) ListDeliveries(ctx context.Context, request ListDeliveriesRequestObject) (ListDeliveriesResponseObject, error) {
	p := request.Params
	filter, err := s.filter(ctx, filterParams{
		source: p.Source, handler: p.Handler, messageType: p.MessageType, messageID: p.MessageID, bizKey: p.BizKey,
		orderingKey: p.OrderingKey, from: p.From, to: p.To,
	})
	if err != nil {
		return nil, err
	}
	filter.Status = inbox.Status(or(p.Status, ""))
	filter.ErrorClass, filter.ResponseStatus = inbox.Class(or(p.ErrorClass, "")), or(p.ResponseStatus, 0)
	after, err := parseCursor("deliveries", filter, p.Cursor)
	if err != nil {
		return nil, err
	}
	page, err := s.store.ListDeliveries(ctx, filter, after, or(p.Limit, defaultLimit))
	if err != nil {
		return nil, err
	}
	return ListDeliveries200JSONResponse{Items: showDeliveries(page.Items), Next: formatCursor("deliveries", filter, page.Next)}, nil
}

// GetDelivery implements the operation.
func (s *server) GetDelivery(ctx context.Context, request GetDeliveryRequestObject) (GetDeliveryResponseObject, error) {
	id, err := deliveryID(request.ID)
	if err != nil {
		return nil, orNotFound(err, "delivery", request.ID)
	}
	d, err := s.store.Delivery(ctx, id)
	if err != nil {
		return nil, orNotFound(err, "delivery", request.ID)
	}
	detail := GetDelivery200JSONResponse{
		Delivery: showDelivery(d.DeliveryState), Attempts: make([]Attempt, len(d.Attempts)), Outcomes: make([]Outcome, len(d.Outcomes)),
	}
	for i, a := range d.Attempts {
		detail.Attempts[i] = showAttempt(a)
	}
	for i, o := range d.Outcomes {
		detail.Outcomes[i] = Outcome{
			FinishedAt: o.FinishedAt.UTC(), Result: DeliveryStatus(o.Result), ReplayNo: o.ReplayNo, ClaimSeq: o.ClaimSeq, Attempts: o.Attempts,
			MaxRetryCount: o.MaxRetryCount, ResponseStatus: some(o.ResponseStatus), Duration: someDuration(o.Duration), LastError: some(o.LastError),
		}
	}
	return detail, nil
}

func showAttempt(a inbox.Attempt) Attempt {
	return Attempt{
		FinishedAt: a.FinishedAt.UTC(), ClaimSeq: a.ClaimSeq, ReplayNo: a.ReplayNo, RetryCount: a.RetryCount, Stale: a.Stale,
		ResponseStatus: some(a.ResponseStatus), Duration: someDuration(a.Duration), Class: string(a.Class), Error: a.Error,
		Owner: a.Owner, ResponseBody: strings.ToValidUTF8(string(a.ResponseBody), "\uFFFD"),
	}
}

// RetryDelivery implements the operation.
func (s *server) RetryDelivery(ctx context.Context, request RetryDeliveryRequestObject) (RetryDeliveryResponseObject, error) {
	id, err := deliveryID(request.ID)
	if err != nil {
		return nil, orNotFound(err, "delivery", request.ID)
	}
	d, err := s.store.Retry(ctx, because(actor(ctx), &Reason{Reason: request.Body.Reason, Note: request.Body.Note}), id, request.Body.ClaimSeq)
	if err != nil {
		return nil, orNotFound(err, "delivery", request.ID)
	}
	s.wake()
	return RetryDelivery200JSONResponse(showDelivery(d)), nil
}

// DiscardDelivery implements the operation.
func (s *server) DiscardDelivery(ctx context.Context, request DiscardDeliveryRequestObject) (DiscardDeliveryResponseObject, error) {
	d, err := s.finish(ctx, request.ID, request.Body, inbox.Discarded)
	return DiscardDelivery200JSONResponse(d), err
}

// FinishDelivery implements the operation.
func (s *server) FinishDelivery(ctx context.Context, request FinishDeliveryRequestObject) (FinishDeliveryResponseObject, error) {
	d, err := s.finish(ctx, request.ID, request.Body, inbox.Done)
	return FinishDelivery200JSONResponse(d), err
}

func (s *server) finish(ctx context.Context, text string, in *ParkedAction, result inbox.Status) (Delivery, error) {
	id, err := deliveryID(text)
	if err != nil {
		return Delivery{}, orNotFound(err, "delivery", text)
	}
	d, err := s.store.Finish(ctx, because(actor(ctx), &Reason{Reason: in.Reason, Note: in.Note}), id, in.ClaimSeq, result)
	if err != nil {
		return Delivery{}, orNotFound(err, "delivery", text)
	}
	return showDelivery(d), nil
}

// filterParams are the filters that both lists have.
type filterParams struct {
	source, handler, messageType, messageID, bizKey, orderingKey *string
	from, to                                                     *time.Time
}

// filter resolves the names. A name that nothing ever had is a typing error rather than an empty list.
func (s *server) filter(ctx context.Context, p filterParams) (inbox.Filter, error) {
	f := inbox.Filter{
		MessageType: or(p.messageType, ""), MessageID: or(p.messageID, ""), BizKey: or(p.bizKey, ""),
		OrderingKey: or(p.orderingKey, ""),
		From:        or(p.from, time.Time{}), To: or(p.to, time.Time{}),
		Within: within(ctx),
	}
	if err := checkSpan(f.From, f.To); err != nil {
		return f, err
	}
	for _, name := range []struct {
		field string
		text  *string
		id    *int64
		find  func(context.Context, string) (int64, error)
		seen  func(int64) bool
	}{
		{"source", p.source, &f.SourceID, s.store.SourceNamed, f.Within.Source},
		{"handler", p.handler, &f.HandlerID, s.store.HandlerNamed, f.Within.Handler},
	} {
		if name.text == nil {
			continue
		}
		var err error
		if *name.id, err = name.find(ctx, *name.text); errors.Is(err, inbox.ErrNotFound) || err == nil && !name.seen(*name.id) {
			return f, invalid(name.field, fmt.Sprintf("no %s has the name %q", name.field, *name.text))
		} else if err != nil {
			return f, err
		}
	}
	return f, nil
}

func checkSpan(from, to time.Time) error {
	if !from.IsZero() && !to.IsZero() && !from.Before(to) {
		return invalid("to", "must be after from")
	}
	return nil
}

// messageNumber and deliveryID read public ids. The largest number is left out: the store counts from one
// beyond.
func messageNumber(text string) (int64, error) {
	id, err := inbox.ParseMessage(text)
	if err == nil && (id == math.MaxInt64 || inbox.FormatMessage(id) != text) {
		return 0, inbox.ErrNotFound
	}
	return id, err
}

func deliveryID(text string) (inbox.DeliveryID, error) {
	id, err := inbox.ParseDelivery(text)
	if err == nil && (id.Message == math.MaxInt64 || id.String() != text) {
		return id, inbox.ErrNotFound
	}
	return id, err
}

func showMessage(m *inbox.MessageState) Message {
	message := Message{
		ID: inbox.FormatMessage(m.ID), ReceivedAt: m.ReceivedAt.UTC(), Source: m.Source, MessageID: m.MessageID, MessageType: m.MessageType,
		EventTime: someTime(m.EventTime), BizKey: some(m.BizKey), OrderingKey: some(m.OrderingKey), ContentType: m.ContentType,
		BodySize: m.BodySize, Status: Status(m.Status), Discarded: m.Discarded,
	}
	if m.DupOf != 0 {
		message.DuplicateOf = some(inbox.FormatMessage(m.DupOf))
	}
	return message
}

// secretHeader is in the names of headers whose values are not shown: what a provider proves itself with. A
// signature is stored, since a handler may want to verify it, but would let its reader send the message again.
var secretHeader = regexp.MustCompile(`(?i)signature|hmac|token|secret|password|api-?key`)

// showHeaders takes the stored lines apart. signature is the header that the message's source names as such.
func showHeaders(lines []byte, signature string) []Header {
	headers := []Header{}
	for line := range bytes.SplitSeq(lines, []byte("\r\n")) {
		if name, value, ok := bytes.Cut(line, []byte(": ")); ok && !bytes.HasPrefix(line, []byte(":")) {
			if secretHeader.Match(name) || signature != "" && strings.EqualFold(string(name), signature) {
				value = []byte("***")
			}
			headers = append(headers, Header{Name: string(name), Value: strings.ToValidUTF8(string(value), "\uFFFD")})
		}
	}
	return headers
}

func showDeliveries(deliveries []inbox.DeliveryState) []Delivery {
	list := make([]Delivery, len(deliveries))
	for i, d := range deliveries {
		list[i] = showDelivery(d)
	}
	return list
}

func showDelivery(d inbox.DeliveryState) Delivery {
	return Delivery{
		ID: d.DeliveryID.String(), Message: inbox.FormatMessage(d.Message), Handler: d.Handler, Source: d.Source,
		MessageID: d.MessageID, MessageType: d.MessageType, BizKey: some(d.BizKey), OrderingKey: some(d.OrderingKey),
		ReceivedAt: d.ReceivedAt.UTC(), Status: DeliveryStatus(d.Status), RetryCount: d.RetryCount, MaxRetryCount: d.MaxRetryCount,
		NextRetryTime: someTime(d.NextRetryTime), ClaimSeq: d.ClaimSeq, ClaimedAt: someTime(d.ClaimedAt),
		LeaseUntil: someTime(d.LeaseUntil), Owner: some(d.Owner), ReplayNo: d.ReplayNo, LastError: some(d.LastError),
		FinishedAt: someTime(d.FinishedAt), ResponseStatus: some(d.ResponseStatus), Duration: someDuration(d.Duration),
	}
}

// some returns nil for a zero value, which is then left out of the answer.
func some[T comparable](value T) *T {
	var zero T
	if value == zero {
		return nil
	}
	return &value
}

func someTime(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

func someDuration(d time.Duration) *string {
	if d == 0 {
		return nil
	}
	text := formatDuration(d)
	return &text
}
