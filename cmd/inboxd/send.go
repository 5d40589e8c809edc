package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/inboxd/inboxd/inbox"
	"github.com/inboxd/inboxd/postgres"
	"github.com/inboxd/inboxd/providers"
)

type sendCommand struct {
	databaseFlags
	secretFlags
	Source string `arg:"" help:"Name of the source. Its sheet and secret are read from the database."`
	To     string `default:"http://127.0.0.1:8080" placeholder:"URL" help:"Where the public listener is."`
	Type   string `placeholder:"T" help:"message_type of the sheet's sample."`
	File   string `placeholder:"F" help:"Send these bytes instead of the sample; - reads standard input."`
	Count  int    `default:"1" help:"How many; a sample has a fresh id each time."`
	Forge  bool   `help:"Sign with a key that the source doesn't have: it has to answer 401."`
}

func (cmd *sendCommand) Run(ctx context.Context, c *console) error {
	if cmd.Count < 1 {
		return errors.New("--count must be 1 or more")
	}
	body, err := cmd.body()
	if err != nil {
		return err
	}
	verifier, err := loadVerifier(ctx, cmd.DatabaseURL, &cmd.secretFlags, cmd.Source)
	if err != nil {
		return err
	}
	unexpected := 0
	for range cmd.Count {
		answer, err := sendSigned(ctx, verifier, cmd.To, providers.Draft{
			Path: "/in/" + cmd.Source, Body: body, MessageType: cmd.Type, Now: time.Now(), Forge: cmd.Forge,
		})
		if err != nil {
			return err
		}
		fmt.Fprintf(c.out, "%s  %s\n", time.Now().Format(clock), answer)
		if answer.asExpected(cmd.Forge) {
			continue
		}
		unexpected++
	}
	if unexpected > 0 {
		return exitError(1)
	}
	return nil
}

// clock is how times of day are printed.
const clock = "15:04:05.000"

func (cmd *sendCommand) body() ([]byte, error) {
	switch cmd.File {
	case "":
		return nil, nil
	case "-":
		return io.ReadAll(os.Stdin)
	}
	return os.ReadFile(cmd.File)
}

// loadVerifier compiles a source as the gateway does.
func loadVerifier(ctx context.Context, databaseURL string, flags *secretFlags, source string) (*providers.Verifier, error) {
	secrets, err := flags.secrets()
	if err != nil {
		return nil, err
	}
	db, err := postgres.Open(ctx, databaseURL, 1, postgres.WithSecrets(secrets))
	if err != nil {
		return nil, err
	}
	defer db.Close()
	snapshots := db.Snapshots()
	if err := snapshots.Refresh(ctx); err != nil {
		return nil, err
	}
	found := snapshots.Current().Source(source)
	if found == nil {
		return nil, fmt.Errorf("there is no source %q: %w", source, inbox.ErrNotFound)
	}
	if found.SecretFault != "" {
		return nil, errors.New(found.SecretFault)
	}
	catalog, err := providers.Embedded()
	if err != nil {
		return nil, err
	}
	return catalog.Configure(found)
}

// sent is what the gateway answered to a message.
type sent struct {
	status    int
	message   string // the message's number
	duplicate bool
	text      string // the answer's body, for a refusal
	took      time.Duration
}

func (s sent) asExpected(forged bool) bool {
	if forged {
		return s.status == http.StatusUnauthorized
	}
	return s.status/100 == 2
}

func (s sent) String() string {
	text := fmt.Sprintf("%d %s in %s", s.status, http.StatusText(s.status), s.took.Round(100*time.Microsecond))
	switch {
	case s.duplicate:
		text += ", duplicate of message " + s.message
	case s.message != "":
		text += ", stored as message " + s.message
	case s.text != "":
		text += ", " + s.text
	}
	return text
}

// sendSigned signs a draft and posts it.
func sendSigned(ctx context.Context, verifier *providers.Verifier, to string, draft providers.Draft) (sent, error) {
	signed, err := verifier.Sign(draft)
	if err != nil {
		return sent{}, err
	}
	return post(ctx, to, signed)
}

// post sends a request that was signed before.
func post(ctx context.Context, to string, signed *providers.Request) (sent, error) {
	url := strings.TrimSuffix(to, "/") + signed.Path
	if signed.RawQuery != "" {
		url += "?" + signed.RawQuery
	}
	request, err := http.NewRequestWithContext(ctx, signed.Method, url, bytes.NewReader(signed.Body))
	if err != nil {
		return sent{}, fmt.Errorf("make the request: %w", err)
	}
	request.Header = signed.Header
	started := time.Now()
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return sent{}, fmt.Errorf("post to the source: %w", err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 200))
	if err != nil {
		return sent{}, fmt.Errorf("read the answer: %w", err)
	}
	return sent{
		status: response.StatusCode, message: response.Header.Get("Inbox-Message"),
		duplicate: response.Header.Get("Inbox-Duplicate") != "", text: strings.TrimSpace(string(text)), took: time.Since(started),
	}, nil
}
