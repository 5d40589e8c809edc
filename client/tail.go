package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// TailEvent is an event of a tail: one of the two.
type TailEvent struct {
	Message  *Message  `json:"message,omitempty"`
	Delivery *Delivery `json:"delivery,omitempty"`
}

const (
	tailQuiet   = 45 * time.Second // a stream without a sign of life for so long is dead; the server gives one each 15 s
	tailMaxWait = 15 * time.Second // between two tries to resume
	maxTailLine = 1 << 20          // bytes
)

// Follow calls take with each event of a tail until ctx is done, which is no error, or take fails. A stream that has begun
// and is cut off is resumed after its last event for as long as it takes, and cut is told why; no event is left out or comes twice.
// What no resuming can mend, such as a token that was revoked, ends it.
func (c *Client) Follow(ctx context.Context, params TailParams, cut func(error), take func(TailEvent) error) error {
	var wait time.Duration
	for begun := false; ; {
		err := c.follow(ctx, &params, func(e TailEvent) error {
			if err := take(e); err != nil {
				return &takeError{err}
			}
			return nil
		}, func() { begun, wait = true, 0 })
		if ctx.Err() != nil {
			return nil
		}
		if stop, ok := errors.AsType[*takeError](err); ok {
			return stop.err
		}
		if refusal, ok := errors.AsType[*Error](err); !begun || ok && refusal.Status < 500 && refusal.Status != http.StatusTooManyRequests {
			return err
		}
		cut(err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
		wait = min(max(2*wait, time.Second), tailMaxWait)
	}
}

// takeError is the caller's own.
type takeError struct{ err error }

func (e *takeError) Error() string { return e.err.Error() }

// follow reads one stream. It notes in params where to resume.
func (c *Client) follow(ctx context.Context, params *TailParams, take func(TailEvent) error, begun func()) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	alive := time.AfterFunc(tailQuiet, func() { cancel(fmt.Errorf("nothing came for %s", tailQuiet)) })
	defer alive.Stop()
	response, err := c.Tail(ctx, params)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK || !strings.HasPrefix(response.Header.Get("Content-Type"), "text/event-stream") {
		if _, err := Read[struct{}](response, nil); err != nil {
			return err
		}
		return fmt.Errorf("answered %s without a stream: is the URL that of inboxd's operators' listener?", response.Status)
	}
	defer response.Body.Close()
	begun()
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, maxTailLine)
	var id, kind, data string
	for lines.Scan() {
		alive.Reset(tailQuiet)
		field, value, _ := strings.Cut(lines.Text(), ":")
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "id":
			id = value
		case "event":
			kind = value
		case "data":
			data = value // ours has one line
		case "":
			if lines.Text() != "" {
				continue // a comment
			}
			if data != "" {
				event, err := parseTailEvent(kind, data)
				if err != nil {
					return err
				}
				if err := take(event); err != nil {
					return err
				}
			}
			if id != "" {
				params.LastEventID = new(id)
			}
			kind, data = "", ""
		}
	}
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read the stream: %w", err)
	}
	return errors.New("the stream has ended")
}

func parseTailEvent(kind, data string) (event TailEvent, err error) {
	switch kind {
	case "message":
		err = json.Unmarshal([]byte(data), &event.Message)
	case "delivery":
		err = json.Unmarshal([]byte(data), &event.Delivery)
	default:
		err = fmt.Errorf("there is no event %q", kind)
	}
	if err != nil {
		return event, &takeError{fmt.Errorf("read an event: %w", err)}
	}
	return event, nil
}
