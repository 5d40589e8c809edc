package api

import (
	"context"
	"strconv"
	"time"

	"github.com/inboxd/inboxd/inbox"
)

// AuditStore tells what operators did.
type AuditStore interface {
	ListAudit(ctx context.Context, f inbox.AuditFilter, after int64, limit int) (inbox.AuditPage, error)
}

// ListAudit implements the operation.
func (s *server) ListAudit(ctx context.Context, request ListAuditRequestObject) (ListAuditResponseObject, error) {
	p := request.Params
	f := inbox.AuditFilter{
		Actor: or(p.Actor, ""), Action: inbox.Action(or(p.Action, "")), Object: or(p.Object, ""),
		From: or(p.From, time.Time{}), To: or(p.To, time.Time{}), Within: within(ctx),
	}
	if err := checkSpan(f.From, f.To); err != nil {
		return nil, err
	}
	var err error
	if p.Message != nil {
		if f.Message, err = messageNumber(*p.Message); err != nil {
			return nil, invalid("message", "must be a message's number")
		}
	}
	sealed := f
	sealed.Within = nil
	var after int64
	if p.Cursor != nil {
		position, err := openCursor("audit", sealed, *p.Cursor)
		if err != nil {
			return nil, err
		}
		if after, err = strconv.ParseInt(position, 10, 64); err != nil || after <= 0 {
			return nil, badCursor("isn't a cursor of this server")
		}
	}
	page, err := s.store.ListAudit(ctx, f, after, or(p.Limit, defaultLimit))
	if err != nil {
		return nil, err
	}
	list := ListAudit200JSONResponse{Items: make([]AuditEntry, len(page.Items))}
	for i, e := range page.Items {
		list.Items[i] = showAuditEntry(e)
	}
	if page.Next != 0 {
		list.Next = sealCursor("audit", sealed, strconv.FormatInt(page.Next, 10))
	}
	return list, nil
}

func showAuditEntry(e inbox.AuditEntry) AuditEntry {
	entry := AuditEntry{
		ID: strconv.FormatInt(e.ID, 10), At: e.At.UTC(), Actor: e.Actor.Name, Action: string(e.Action), Object: e.Object,
		Reason: some(e.Actor.Reason), Note: some(e.Actor.Note), Before: e.Before, After: e.After,
	}
	if e.Message != 0 {
		entry.Message = some(inbox.FormatMessage(e.Message))
	}
	entry.Job = someNumber(e.Job)
	return entry
}
