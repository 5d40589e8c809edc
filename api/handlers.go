package api

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/inboxd/inboxd/inbox"
)

// What a handler gets that doesn't ask for something else; openapi.yaml says the same. With these, the last
// of the retries comes more than three hours after the first attempt.
const (
	defaultConcurrency   = 10
	defaultTimeout       = "30s"
	defaultMaxRetryCount = 12
	defaultBackoffBase   = "5s"
	defaultBackoffCap    = "1h"
)

// ListHandlers implements the operation.
func (s *server) ListHandlers(ctx context.Context, _ ListHandlersRequestObject) (ListHandlersResponseObject, error) {
	handlers, err := s.store.Handlers(ctx)
	if err != nil {
		return nil, err
	}
	list := ListHandlers200JSONResponse{Items: []HandlerView{}}
	for _, h := range handlers {
		if within(ctx).Handler(h.ID) {
			list.Items = append(list.Items, s.showHandler(h))
		}
	}
	return list, nil
}

// CreateHandler implements the operation.
func (s *server) CreateHandler(ctx context.Context, request CreateHandlerRequestObject) (CreateHandlerResponseObject, error) {
	in := request.Body
	secret := newSigningSecret()
	h := &inbox.Handler{
		Name: in.Name, URL: in.URL, Sources: in.Sources, MessageTypes: in.MessageTypes,
		Secrets:           []inbox.Secret{inbox.Secret(secret)},
		Concurrency:       or(in.Concurrency, defaultConcurrency),
		Timeout:           duration(or(in.Timeout, defaultTimeout)),
		MaxRetryCount:     or(in.MaxRetryCount, defaultMaxRetryCount),
		Backoff:           inbox.Backoff{Base: duration(or(in.BackoffBase, defaultBackoffBase)), Cap: duration(or(in.BackoffCap, defaultBackoffCap))},
		PermanentStatuses: in.PermanentStatuses,
		Paused:            or(in.Paused, false),
		Credentials:       toCredentials(in.Credentials),
	}
	if h.MessageTypes == nil {
		h.MessageTypes = []string{"*"}
	}
	if err := checkNewName(scope(ctx).Handler, in.Name, scope(ctx).Handlers); err != nil {
		return nil, err
	}
	if err := s.checkSources(ctx, h.Sources); err != nil {
		return nil, err
	}
	if err := checkSubscriptions(scope(ctx), h.Sources); err != nil {
		return nil, err
	}
	if err := checkCredentials(ctx, h.Credentials); err != nil {
		return nil, err
	}
	if err := checkBackoff(h); err != nil {
		return nil, err
	}
	if err := s.checkURL(h.URL); err != nil {
		return nil, err
	}
	if !h.Credentials.Empty() {
		if err := s.checkHandler(h); err != nil {
			return nil, err
		}
	}
	if err := s.store.CreateHandler(ctx, actor(ctx), h); err != nil {
		return nil, orNameTaken(err, "handler", in.Name)
	}
	s.reload(ctx)
	return CreateHandler201JSONResponse{Handler: s.showHandler(h), Secret: secret}, nil
}

// GetHandler implements the operation.
func (s *server) GetHandler(ctx context.Context, request GetHandlerRequestObject) (GetHandlerResponseObject, error) {
	h, err := s.store.Handler(ctx, request.Name)
	if err != nil {
		return nil, orNotFound(err, "handler", request.Name)
	}
	return GetHandler200JSONResponse(s.showHandler(h)), nil
}

// ChangeHandler implements the operation.
func (s *server) ChangeHandler(ctx context.Context, request ChangeHandlerRequestObject) (ChangeHandlerResponseObject, error) {
	in := request.Body
	if err := checkCredentials(ctx, toCredentials(in.Credentials)); err != nil {
		return nil, err
	}
	if err := s.checkSources(ctx, in.Sources); err != nil {
		return nil, err
	}
	if in.URL != nil {
		if err := s.checkURL(*in.URL); err != nil {
			return nil, err
		}
	}
	h, err := s.store.ChangeHandler(ctx, actor(ctx), request.Name, func(h *inbox.Handler) error {
		// What it gets now counts as well: a delivery that exists goes to the new URL.
		if err := checkSubscriptions(scope(ctx), slices.Concat(h.Sources, in.Sources)); err != nil {
			return err
		}
		moved := in.URL != nil && *in.URL != h.URL
		if moved && !h.Credentials.Empty() && in.Credentials == nil {
			// Else whoever may change a URL could have them sent to a place of his own.
			return invalid("credentials", "must be given again, since the URL changes; {} takes them away")
		}
		h.URL = or(in.URL, h.URL)
		h.Concurrency = or(in.Concurrency, h.Concurrency)
		h.MaxRetryCount = or(in.MaxRetryCount, h.MaxRetryCount)
		h.Paused = or(in.Paused, h.Paused)
		if in.Sources != nil {
			h.Sources = in.Sources
		}
		if in.MessageTypes != nil {
			h.MessageTypes = in.MessageTypes
		}
		if in.PermanentStatuses != nil {
			h.PermanentStatuses = in.PermanentStatuses
		}
		if in.Timeout != nil {
			h.Timeout = duration(*in.Timeout)
		}
		if in.BackoffBase != nil {
			h.Backoff.Base = duration(*in.BackoffBase)
		}
		if in.BackoffCap != nil {
			h.Backoff.Cap = duration(*in.BackoffCap)
		}
		if in.Credentials != nil {
			if h.Credentials = toCredentials(in.Credentials); !h.Credentials.Empty() {
				if err := s.checkHandler(h); err != nil {
					return err
				}
			}
		}
		return checkBackoff(h)
	})
	if err != nil {
		return nil, orNotFound(err, "handler", request.Name)
	}
	s.reload(ctx)
	return ChangeHandler200JSONResponse(s.showHandler(h)), nil
}

// DeleteHandler implements the operation.
func (s *server) DeleteHandler(ctx context.Context, request DeleteHandlerRequestObject) (DeleteHandlerResponseObject, error) {
	if h, err := s.store.Handler(ctx, request.Name); err != nil {
		return nil, orNotFound(err, "handler", request.Name)
	} else if err := checkSubscriptions(scope(ctx), h.Sources); err != nil {
		return nil, err
	}
	if err := s.store.DeleteHandler(ctx, actor(ctx), request.Name); err != nil {
		return nil, orNotFound(err, "handler", request.Name)
	}
	s.reload(ctx)
	return DeleteHandler204Response{}, nil
}

// PauseHandler implements the operation.
func (s *server) PauseHandler(ctx context.Context, request PauseHandlerRequestObject) (PauseHandlerResponseObject, error) {
	view, err := s.pause(ctx, request.Body, request.Name, true)
	return PauseHandler200JSONResponse(view), err
}

// ResumeHandler implements the operation.
func (s *server) ResumeHandler(ctx context.Context, request ResumeHandlerRequestObject) (ResumeHandlerResponseObject, error) {
	view, err := s.pause(ctx, request.Body, request.Name, false)
	return ResumeHandler200JSONResponse(view), err
}

func (s *server) pause(ctx context.Context, why *Reason, name string, paused bool) (HandlerView, error) {
	h, err := s.store.ChangeHandler(ctx, because(actor(ctx), why), name, func(h *inbox.Handler) error {
		h.Paused = paused
		return checkSubscriptions(scope(ctx), h.Sources)
	})
	if err != nil {
		return HandlerView{}, orNotFound(err, "handler", name)
	}
	s.reload(ctx)
	return s.showHandler(h), nil
}

// pingTimeout bounds a ping: somebody waits for its answer.
const pingTimeout = 30 * time.Second

// PingHandler implements the operation.
func (s *server) PingHandler(ctx context.Context, request PingHandlerRequestObject) (PingHandlerResponseObject, error) {
	h, err := s.store.Handler(ctx, request.Name)
	if err != nil {
		return nil, orNotFound(err, "handler", request.Name)
	}
	h.Timeout = min(h.Timeout, pingTimeout)
	r := s.ping(ctx, h)
	return PingHandler200JSONResponse{
		OK: r.Verdict == inbox.VerdictDone, ResponseStatus: some(r.ResponseStatus), Duration: r.Duration.String(),
		Class: string(r.Class), Error: r.Error, ResponseBody: strings.ToValidUTF8(string(r.ResponseBody), "\uFFFD"),
	}, nil
}

// checkSources refuses names that no source has: a typing error would make a handler that gets nothing.
func (s *server) checkSources(ctx context.Context, names []string) error {
	if len(names) == 0 {
		return nil
	}
	sources, err := s.store.Sources(ctx)
	if err != nil {
		return err
	}
	known := map[string]bool{"*": true}
	for _, source := range sources {
		known[source.Name] = within(ctx).Source(source.ID)
	}
	var wrong []FieldError
	for i, name := range names {
		if !known[name] {
			wrong = append(wrong, FieldError{Field: fmt.Sprintf("sources[%d]", i), Detail: fmt.Sprintf("no source has the name %q; * is every source", name)})
		}
	}
	if wrong != nil {
		return &apiError{kind: ProblemInvalid, fields: wrong}
	}
	return nil
}

// checkURL refuses a URL, well-formed as it is, to which no connection could ever be made.
func (s *server) checkURL(text string) error {
	u, err := url.Parse(text)
	if err == nil {
		err = s.checker.CheckHost(u.Hostname())
	}
	if err != nil {
		return invalid("url", err.Error())
	}
	return nil
}

func checkBackoff(h *inbox.Handler) error {
	if h.Backoff.Cap < h.Backoff.Base {
		return invalid("backoff_cap", "must be at least backoff_base, which is "+formatDuration(h.Backoff.Base))
	}
	return nil
}

func (s *server) showHandler(h *inbox.Handler) HandlerView {
	return HandlerView{
		Name: h.Name, URL: h.URL, Sources: h.Sources, MessageTypes: h.MessageTypes, SecretCount: len(h.Secrets), SecretError: orNil(h.SecretFault),
		Credentials: s.showCredentials(h),
		Concurrency: h.Concurrency, Timeout: formatDuration(h.Timeout), MaxRetryCount: h.MaxRetryCount,
		BackoffBase: formatDuration(h.Backoff.Base), BackoffCap: formatDuration(h.Backoff.Cap),
		PermanentStatuses: append([]int{}, h.PermanentStatuses...), Paused: h.Paused,
		CreatedAt: h.CreatedAt.UTC(), UpdatedAt: h.UpdatedAt.UTC(),
	}
}

// duration reads a duration that was validated.
func duration(text string) time.Duration {
	d, _ := time.ParseDuration(text)
	return d
}

// newSigningSecret makes a secret of Standard Webhooks: the prefix and 32 random bytes as base64.
func newSigningSecret() string {
	var random [32]byte
	rand.Read(random[:]) // never fails
	return "whsec_" + base64.StdEncoding.EncodeToString(random[:])
}
