package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/inboxd/inboxd/client"
)

// The exit statuses of the commands over the API, beside 0 and 1.
const (
	exitUsage    = 2 // the command line, or a value that the API doesn't allow
	exitNotFound = 3
	exitConflict = 4 // the name is taken, or the delivery has moved on
	exitRefused  = 5 // the token
)

// remoteStatus is the exit status that says what the API refused.
func remoteStatus(e *client.Error) int {
	switch e.Status {
	case http.StatusBadRequest, http.StatusUnprocessableEntity, http.StatusRequestEntityTooLarge:
		return exitUsage
	case http.StatusNotFound:
		return exitNotFound
	case http.StatusConflict:
		return exitConflict
	case http.StatusUnauthorized, http.StatusForbidden:
		return exitRefused
	}
	return 1
}

// remoteFlags is how a command reaches the operators' API, and how it prints.
type remoteFlags struct {
	URL   string `default:"http://127.0.0.1:8081" placeholder:"URL" help:"The operators' listener."`
	Token string `required:"" placeholder:"TOKEN" help:"Token of the operators' API. Better given in the environment."`
	JSON  bool   `help:"Print one JSON document, for programs."`
}

func (f *remoteFlags) connect() (*client.Client, error) { return client.New(f.URL, f.Token) }

// show prints a result: the document, or what table writes, tabs between its columns.
func (f *remoteFlags) show(c *console, document any, table func(w io.Writer)) error {
	if f.JSON {
		encoder := json.NewEncoder(c.out)
		encoder.SetIndent("", "  ")
		encoder.SetEscapeHTML(false)
		return encoder.Encode(document)
	}
	w := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
	table(w)
	return w.Flush()
}

// pageFlags says how much of a list is wanted.
type pageFlags struct {
	Limit int  `default:"50" help:"The most items."`
	All   bool `help:"The whole list."`
}

// list is a list as it is printed for programs.
type list[T any] struct {
	Items []T `json:"items"`
}

// maxPage is the most items that the API gives at once.
const maxPage = 500

// collect follows a list's cursors until there is as much as is wanted.
func collect[T any](f pageFlags, page func(cursor *string, limit int) ([]T, *string, error)) (list[T], error) {
	found := list[T]{Items: []T{}}
	if f.Limit < 1 {
		return found, errors.New("--limit must be 1 or more")
	}
	var cursor *string
	for f.All || len(found.Items) < f.Limit {
		limit := maxPage
		if !f.All {
			limit = min(maxPage, f.Limit-len(found.Items))
		}
		items, next, err := page(cursor, limit)
		if err != nil {
			return found, err
		}
		found.Items = append(found.Items, items...)
		if next == nil {
			break
		}
		cursor = next
	}
	return found, nil
}

// readSecrets returns the secrets that files (- is standard input) hold, and the references. A secret is never
// an argument: other users of the machine see those.
func readSecrets(files, references []string) ([]string, error) {
	var secrets []string
	for _, file := range files {
		text, err := readInput(file, maxSecretFile)
		if err != nil {
			return nil, fmt.Errorf("read the secret: %w", err)
		}
		secret := strings.TrimRight(string(text), "\r\n")
		if secret == "" || len(secret) > maxSecretFile {
			return nil, fmt.Errorf("the secret in %s is empty or longer than %d bytes", file, maxSecretFile)
		}
		secrets = append(secrets, secret)
	}
	for _, reference := range references {
		if !strings.HasPrefix(reference, "env:") && !strings.HasPrefix(reference, "file:") {
			return nil, errors.New("--secret-ref must begin with env: or file:; give the secret itself with --secret-file")
		}
		secrets = append(secrets, reference)
	}
	return secrets, nil
}

// readInput reads a file, - is standard input, up to a byte more than the limit.
func readInput(file string, limit int64) ([]byte, error) {
	if file == "-" {
		return io.ReadAll(io.LimitReader(os.Stdin, limit+1))
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, limit+1))
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// foreign is text that came from outside. It is shown as it is, unless it could do something to a terminal or a table.
type foreign string

func (f foreign) String() string {
	if f == "" {
		return "-"
	}
	if quoted := strconv.Quote(string(f)); quoted[1:len(quoted)-1] != string(f) {
		return quoted
	}
	return string(f)
}

func orDash(text *string) foreign {
	if text == nil {
		return ""
	}
	return foreign(*text)
}
