package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/rs/zerolog"

	"github.com/inboxd/inboxd/inbox"
)

// apiError is an error that is meant for the caller.
type apiError struct {
	kind   ProblemType
	detail string
	fields []FieldError
}

func (e *apiError) Error() string { return e.detail }

func notFound(what, id string) error {
	return &apiError{kind: ProblemNotFound, detail: fmt.Sprintf("There is no %s %q.", what, id)}
}

// orNotFound names what was looked for, if that is what err is about.
func orNotFound(err error, what, id string) error {
	if errors.Is(err, inbox.ErrNotFound) {
		return notFound(what, id)
	}
	return err
}

func orNameTaken(err error, what, name string) error {
	if errors.Is(err, inbox.ErrNameTaken) {
		return &apiError{kind: ProblemNameTaken, detail: fmt.Sprintf("Another %s has the name %q.", what, name)}
	}
	return err
}

// invalid is a value that isn't allowed.
func invalid(field, detail string) error {
	return &apiError{kind: ProblemInvalid, fields: []FieldError{{Field: field, Detail: detail}}}
}

// problems has the status and title of each type.
var problems = map[ProblemType]struct {
	status int
	title  string
}{
	ProblemBadRequest:           {http.StatusBadRequest, "The request can't be read"},
	ProblemUnauthorized:         {http.StatusUnauthorized, "A valid token is needed"},
	ProblemForbidden:            {http.StatusForbidden, "The token may not do this"},
	ProblemTooManyTries:         {http.StatusTooManyRequests, "Too many failed tries"},
	ProblemNotFound:             {http.StatusNotFound, "Not found"},
	ProblemMethodNotAllowed:     {http.StatusMethodNotAllowed, "The method isn't allowed here"},
	ProblemConflict:             {http.StatusConflict, "It isn't in a state for this"},
	ProblemNameTaken:            {http.StatusConflict, "The name is taken"},
	ProblemTooLarge:             {http.StatusRequestEntityTooLarge, "The body is too large"},
	ProblemUnsupportedMediaType: {http.StatusUnsupportedMediaType, "The body isn't JSON"},
	ProblemInvalid:              {http.StatusUnprocessableEntity, "A value isn't allowed"},
	ProblemUnavailable:          {http.StatusServiceUnavailable, "The database is unavailable"},
	ProblemTooManyStreams:       {http.StatusServiceUnavailable, "Too many streams are open"},
	ProblemInternal:             {http.StatusInternalServerError, "Something went wrong here"},
}

func (s *server) fail(w http.ResponseWriter, r *http.Request, err error) {
	writeError(w, r, s.log, err)
}

// writeError is the one place where an error becomes an answer. What isn't the caller's doing is logged,
// and said without detail.
func writeError(w http.ResponseWriter, r *http.Request, log zerolog.Logger, err error) {
	e := explain(err)
	if r.Context().Err() == nil && (e.kind == ProblemInternal || e.kind == ProblemUnavailable) {
		log.Error().Err(err).Str("method", r.Method).Str("path", r.URL.Path).Msg("request failed")
	}
	if e.kind == ProblemUnavailable || e.kind == ProblemTooManyStreams {
		w.Header().Set("Retry-After", "1")
	}
	p := problems[e.kind]
	body := Problem{Type: e.kind, Title: p.title, Status: p.status, Errors: e.fields}
	if e.detail != "" {
		body.Detail = &e.detail
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.status)
	_ = json.NewEncoder(w).Encode(body) // the caller may have hung up
}

func explain(err error) *apiError {
	if e, ok := errors.AsType[*apiError](err); ok {
		return e
	}
	if e, ok := errors.AsType[*InvalidParamFormatError](err); ok {
		return &apiError{kind: ProblemBadRequest, fields: []FieldError{{Field: e.ParamName, Detail: parameterForm(e.ParamName)}}}
	}
	if e, ok := errors.AsType[*RequiredParamError](err); ok {
		return &apiError{kind: ProblemBadRequest, fields: []FieldError{{Field: e.ParamName, Detail: "is required"}}}
	}
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		if e.Field == "" {
			return &apiError{kind: ProblemBadRequest, detail: "The body must be a JSON object."}
		}
		return &apiError{kind: ProblemBadRequest, fields: []FieldError{{
			Field: e.Field, Detail: fmt.Sprintf("must be %s, not %s", jsonKind(e.Type), e.Value),
		}}}
	}
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		return &apiError{kind: ProblemBadRequest, detail: fmt.Sprintf("The body isn't JSON: %v, at byte %d.", e, e.Offset)}
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return &apiError{kind: ProblemBadRequest, detail: "The body is missing or ends too early; a JSON object is needed."}
	}
	if e, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return &apiError{kind: ProblemTooLarge, detail: fmt.Sprintf("At most %d bytes are allowed.", e.Limit)}
	}
	if e, ok := errors.AsType[*inbox.ConflictError](err); ok {
		return &apiError{kind: ProblemConflict, detail: e.Detail}
	}
	switch {
	case errors.Is(err, inbox.ErrNoSealingKey):
		return &apiError{kind: ProblemInvalid, detail: "This instance has no key to seal a secret with, so it stores none. " +
			"Make one with `inboxd secrets key`, give it to every instance as INBOXD_SECRET_KEYS, and start them again."}
	case errors.Is(err, inbox.ErrNotFound):
		return &apiError{kind: ProblemNotFound}
	case errors.Is(err, inbox.ErrNameTaken):
		return &apiError{kind: ProblemNameTaken}
	case errors.Is(err, inbox.ErrConflict):
		return &apiError{kind: ProblemConflict}
	case errors.Is(err, inbox.ErrRefused):
		return &apiError{kind: ProblemInvalid, detail: "The database refuses a value: one with a NUL character, or one that is too long."}
	case errors.Is(err, inbox.ErrUnavailable):
		return &apiError{kind: ProblemUnavailable}
	}
	return &apiError{kind: ProblemInternal}
}

// parameterForm says what a query parameter looks like.
func parameterForm(name string) string {
	switch name {
	case "limit":
		return "must be one whole number"
	case "from", "to", "since":
		return "must be one RFC 3339 time, such as 2026-01-31T15:04:05Z"
	}
	return "must be given once"
}
