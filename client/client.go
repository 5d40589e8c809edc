package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"
)

// Time is a time in a request's body.
type Time = time.Time

// Error is a refusal by the API, as its problem document says it.
type Error struct {
	Problem
}

func (e *Error) Error() string {
	var text strings.Builder
	text.WriteString(e.Title)
	if e.Detail != nil {
		text.WriteString(": " + *e.Detail)
	}
	for _, field := range e.Errors {
		fmt.Fprintf(&text, "\n  %s %s", field.Field, field.Detail)
	}
	return text.String()
}

// maxAnswer is the most bytes of an answer that are read: the largest body as base64, and more.
const maxAnswer = 256 << 20

// New returns a client of the API of the instance whose operators' listener is at url.
func New(url, token string) (*Client, error) {
	return NewClient(strings.TrimSuffix(url, "/")+"/api/v1", WithHTTPClient(&http.Client{
		// The token goes to the URL that was given and nowhere else.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}), WithRequestEditorFn(
		func(_ context.Context, request *http.Request) error {
			request.Header.Set("Authorization", "Bearer "+token)
			return nil
		}))
}

// Read reads the answer of a call, or the *Error that it holds. It takes a call's results as they are.
func Read[T any](response *http.Response, err error) (T, error) {
	var answer T
	if err != nil {
		return answer, err
	}
	defer response.Body.Close()
	body := json.NewDecoder(io.LimitReader(response.Body, maxAnswer))
	if response.StatusCode/100 != 2 {
		kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
		problem := &Error{}
		if kind != "application/problem+json" || body.Decode(&problem.Problem) != nil {
			return answer, fmt.Errorf("answered %s without a problem document: is the URL that of inboxd's operators' listener?", response.Status)
		}
		return answer, problem
	}
	if response.StatusCode == http.StatusNoContent {
		return answer, nil
	}
	if err := body.Decode(&answer); err != nil {
		return answer, fmt.Errorf("read the answer: %w", err)
	}
	return answer, nil
}
