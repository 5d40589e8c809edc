package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/inboxd/inboxd/inbox"
)

// TailStore tells what happens, in short reads: between them a tail holds nothing.
type TailStore interface {
	// TailFrom returns the position from which Tail tells what happens from now on, or what has happened since a time.
	TailFrom(ctx context.Context, since time.Time) (string, error)
	// Tail returns what happened after a position. Of the filter it heeds status, source, handler, message type and reach. It
	// fails with ErrRefused if the position is none.
	Tail(ctx context.Context, f inbox.Filter, position string) (inbox.TailPage, error)
}

const (
	maxTails         = 16                     // at once
	maxScopedTails   = 4                      // of a token that is for some only: it leaves some to others
	tailInterval     = 500 * time.Millisecond // between two looks
	tailHeartbeat    = 15 * time.Second       // an id comes at least so often; openapi.yaml says it
	tailReadTimeout  = 10 * time.Second       // of one look
	tailWriteTimeout = 10 * time.Second       // a reader who doesn't take a piece in so long is cut off
	tailPiece        = 32 << 10               // bytes of events that are written at once, about
)

// tailResponse writes the stream.
type tailResponse func(w http.ResponseWriter) error

// VisitTailResponse implements the answer of an operation.
func (f tailResponse) VisitTailResponse(w http.ResponseWriter) error { return f(w) }

// Tail implements the operation.
func (s *server) Tail(ctx context.Context, request TailRequestObject) (TailResponseObject, error) {
	p := request.Params
	filter, err := s.filter(ctx, filterParams{source: p.Source, handler: p.Handler, messageType: p.MessageType})
	if err != nil {
		return nil, err
	}
	filter.Status = inbox.Status(or(p.Status, ""))
	filter.Within = nil // it is looked up anew for each look
	var position string
	if p.LastEventID != nil {
		if position, err = openCursor("tail", filter, *p.LastEventID); err != nil {
			return nil, badEventID("isn't the id of an event of this stream, with these filters")
		}
	} else if position, err = s.store.TailFrom(ctx, or(p.Since, time.Time{})); err != nil {
		return nil, err
	}
	return tailResponse(func(w http.ResponseWriter) error {
		leave, err := s.tails.enter(ctx)
		if err != nil {
			return err
		}
		defer leave()
		page, err := s.look(ctx, filter, position)
		if errors.Is(err, inbox.ErrRefused) {
			return badEventID("isn't an id of this server")
		}
		if err != nil {
			return err
		}
		t := &tail{w: http.NewResponseController(w), out: w, filter: filter}
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("X-Accel-Buffering", "no") // a proxy that collects answers would keep it for ever
		if err := t.begin(position); err != nil {
			return nil // the reader has gone, and what was written can't be taken back
		}
		for caughtUp := false; ; {
			if err := t.write(page, !caughtUp && !page.More); err != nil {
				return nil
			}
			caughtUp = caughtUp || !page.More
			if !page.More {
				select {
				case <-ctx.Done():
					return nil
				case <-s.draining:
					return nil
				case <-time.After(tailInterval):
				}
			}
			if page, err = s.look(ctx, filter, page.Next); err != nil {
				if ctx.Err() == nil {
					s.log.Warn().Err(err).Msg("a tail ends; its reader may resume it")
				}
				return nil
			}
		}
	}), nil
}

// tails counts the streams.
type tails struct {
	mu     sync.Mutex // guards what follows
	all    int
	scoped map[int64]int // by token
}

// enter counts a stream until leave is called.
func (t *tails) enter(ctx context.Context) (leave func(), err error) {
	token := actor(ctx).TokenID
	few := within(ctx) != nil
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.all >= maxTails:
		return nil, tooManyStreams("This instance has %d streams, which is the most. Try another instance, or when one has ended.", maxTails)
	case few && t.scoped[token] >= maxScopedTails:
		return nil, tooManyStreams("This token has %d streams at this instance, which is the most. End one first.", maxScopedTails)
	}
	t.all++
	if few {
		if t.scoped == nil {
			t.scoped = make(map[int64]int)
		}
		t.scoped[token]++
	}
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.all--
		if few {
			if t.scoped[token]--; t.scoped[token] == 0 {
				delete(t.scoped, token)
			}
		}
	}, nil
}

func tooManyStreams(format string, most int) error {
	return &apiError{kind: ProblemTooManyStreams, detail: fmt.Sprintf(format, most)}
}

func badEventID(detail string) error {
	return &apiError{kind: ProblemBadRequest, fields: []FieldError{{Field: "Last-Event-ID", Detail: detail}}}
}

// look reads what is new, if the token is still valid, and of that what it may see by now.
func (s *server) look(ctx context.Context, f inbox.Filter, position string) (page inbox.TailPage, err error) {
	ctx, cancel := context.WithTimeout(ctx, tailReadTimeout)
	defer cancel()
	hash, _ := ctx.Value(hashKey{}).([sha256.Size]byte)
	token, err := s.store.TokenByHash(ctx, hash)
	if err != nil {
		return page, fmt.Errorf("look for the token: %w", err)
	}
	if !token.Scope.Everything() {
		if f.Within, err = s.store.Reach(ctx, token.Scope); err != nil {
			return page, err
		}
	}
	return s.store.Tail(ctx, f, position)
}

// tail writes a stream of events.
type tail struct {
	w      *http.ResponseController
	out    http.ResponseWriter
	filter inbox.Filter
	told   time.Time // when an id was last written
}

// begin lets the reader know that the stream has begun, and where.
func (t *tail) begin(position string) error {
	// The listener's timeout is one for requests, which arrive whole.
	if err := t.w.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	var text bytes.Buffer
	text.WriteString("retry: 1000\n")
	t.id(&text, position)
	return t.send(text.Bytes())
}

// write sends a page, and where it ends if that is asked for or no id was sent for long.
func (t *tail) write(page inbox.TailPage, end bool) error {
	var text bytes.Buffer
	for _, e := range page.Events {
		if text.Len() >= tailPiece {
			if err := t.send(text.Bytes()); err != nil {
				return err
			}
			text.Reset()
		}
		kind, line, err := tailEvent(e)
		if err != nil {
			return err
		}
		fmt.Fprintf(&text, "event: %s\ndata: %s\n", kind, line)
		t.id(&text, e.After)
	}
	if end || time.Since(t.told) >= tailHeartbeat {
		t.id(&text, page.Next)
	}
	if text.Len() == 0 {
		return nil
	}
	return t.send(text.Bytes())
}

func tailEvent(e inbox.TailEvent) (kind string, line []byte, err error) {
	if e.Message != nil {
		line, err = json.Marshal(showMessage(e.Message))
		return "message", line, err
	}
	line, err = json.Marshal(showDelivery(*e.Delivery))
	return "delivery", line, err
}

// id ends an event, or is none by itself: a reader only notes it.
func (t *tail) id(text *bytes.Buffer, position string) {
	fmt.Fprintf(text, "id: %s\n\n", *sealCursor("tail", t.filter, position))
	t.told = time.Now()
}

func (t *tail) send(text []byte) error {
	if err := t.w.SetWriteDeadline(time.Now().Add(tailWriteTimeout)); err != nil {
		return err
	}
	if _, err := t.out.Write(text); err != nil {
		return err
	}
	return t.w.Flush()
}
