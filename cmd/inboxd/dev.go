package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/inboxd/inboxd/inbox"
	"github.com/inboxd/inboxd/internal/devpg"
	"github.com/inboxd/inboxd/internal/seal"
	"github.com/inboxd/inboxd/postgres"
	"github.com/inboxd/inboxd/providers"
)

type devCommand struct {
	DatabaseURL string `placeholder:"URL" help:"A PostgreSQL of yours; without it a private one runs in --dir."`
	Dir         string `default:".inboxd" help:"Where the private PostgreSQL and the operators' token are kept."`
	Listen      string `default:"127.0.0.1:8080" help:"Public listener; if it is taken, a free port."`
	AdminListen string `default:"127.0.0.1:8081" help:"Operators' listener; if it is taken, a free port."`
	Once        bool   `help:"End after the demonstration; exit status 0 only if every step held."`
	Reset       bool   `help:"Forget the private PostgreSQL's data first."`
	LogLevel    string `default:"warn" enum:"debug,info,warn,error" help:"debug, info, warn or error."`
}

// The demonstration's source and handler.
const (
	demoSource  = "demo"
	demoHandler = "echo"
)

// stepTimeout is how long a step of the demonstration may take.
const stepTimeout = 10 * time.Second

func (cmd *devCommand) Run(ctx context.Context, c *console) (err error) {
	d := &dev{out: c.out}
	if err := cmd.prepareDir(ctx); err != nil {
		return err
	}
	databaseURL, stopDatabase, err := devpg.Ensure(ctx, devpg.Options{
		URL: cmd.DatabaseURL, Dir: filepath.Join(cmd.Dir, "postgres"),
		Settings: map[string]string{"jit": "off"}, Log: d.say,
	})
	if err != nil {
		return err
	}
	defer func() {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		err = errors.Join(err, stopDatabase(stop))
	}()
	if err := postgres.Migrate(ctx, databaseURL); err != nil {
		return err
	}
	d.say("PostgreSQL is ready, the schema is up to date")
	token, err := cmd.token(ctx, databaseURL)
	if err != nil {
		return err
	}

	settings := defaultGatewayFlags()
	settings.Listen, settings.AdminListen = freeOr(cmd.Listen), freeOr(cmd.AdminListen)
	settings.LogLevel, settings.DrainDelay = cmd.LogLevel, 0
	if settings.SecretKeys, err = cmd.secretKey(); err != nil {
		return err
	}
	g, err := newGateway(ctx, gatewayConfig{DatabaseURL: databaseURL, Settings: settings, Log: newLogger(c.err, cmd.LogLevel)})
	if err != nil {
		return err
	}
	d.public = "http://" + g.public.Addr().String()
	d.operators = operators{url: "http://" + g.admin.Addr().String(), token: token}

	// The demonstration's end, with --once, ends the rest as Ctrl-C does.
	running, end := context.WithCancel(ctx)
	defer end()
	group, running := errgroup.WithContext(running)
	group.Go(func() error { return g.run(running) })
	group.Go(func() error {
		err := d.demonstrate(running, g)
		if cmd.Once {
			end()
			return err
		}
		if running.Err() == nil {
			if err != nil {
				d.say("the demonstration failed: " + err.Error())
			}
			d.invite(databaseURL, filepath.Join(cmd.Dir, secretKeyFile))
		}
		return nil
	})
	return group.Wait()
}

func (cmd *devCommand) prepareDir(ctx context.Context) error {
	if cmd.Reset {
		if cmd.DatabaseURL != "" {
			return errors.New("--reset forgets the private PostgreSQL; with --database-url there is none")
		}
		if err := devpg.Remove(ctx, filepath.Join(cmd.Dir, "postgres")); err != nil {
			return err
		}
		if err := os.RemoveAll(filepath.Join(cmd.Dir, tokenFile)); err != nil {
			return err
		}
	}
	return os.MkdirAll(cmd.Dir, 0o755)
}

const tokenFile = "token"

// token returns the operators' token of the last start, or makes one.
func (cmd *devCommand) token(ctx context.Context, databaseURL string) (string, error) {
	db, err := postgres.Open(ctx, databaseURL, 1)
	if err != nil {
		return "", err
	}
	defer db.Close()
	path := filepath.Join(cmd.Dir, tokenFile)
	if kept, err := os.ReadFile(path); err == nil {
		if _, err := db.TokenByHash(ctx, sha256.Sum256(kept)); err == nil {
			return string(kept), nil
		}
	}
	token, err := db.CreateToken(ctx, inbox.Actor{Name: "inboxd dev"}, &inbox.OperatorToken{Name: "dev-" + randomText(6), Role: inbox.RoleAdmin, Scope: inbox.Everything()})
	if err != nil {
		return "", err
	}
	return token, os.WriteFile(path, []byte(token), 0o600)
}

const secretKeyFile = "secret-key"

// secretKey returns the key that the last start sealed secrets with, or makes one. --reset keeps it: a database
// of the operator's own outlives the private one.
func (cmd *devCommand) secretKey() (string, error) {
	path := filepath.Join(cmd.Dir, secretKeyFile)
	kept, err := os.ReadFile(path)
	if err == nil {
		return strings.TrimSpace(string(kept)), nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	entry, err := seal.NewKey("dev")
	if err != nil {
		return "", err
	}
	return entry, os.WriteFile(path, []byte(entry+"\n"), 0o600)
}

// freeOr returns the address, or a free port of loopback if somebody listens there.
func freeOr(address string) string {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return "127.0.0.1:0"
	}
	_ = listener.Close()
	return address
}

func randomText(bytes int) string {
	random := make([]byte, bytes)
	_, _ = rand.Read(random)
	return strings.ToLower(base64.RawURLEncoding.EncodeToString(random))
}

// dev is a running `inboxd dev`.
type dev struct {
	out       io.Writer
	public    string
	operators operators
}

func (d *dev) say(text string) { fmt.Fprintf(d.out, "%s  %s\n", time.Now().Format(clock), text) }

// demonstrate shows the main job on real input. It returns an error as soon as a step doesn't hold.
func (d *dev) demonstrate(ctx context.Context, g *gateway) error {
	echo, err := startEcho()
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = echo.server.Close() })
	if err := d.register(ctx, echo.url); err != nil {
		return err
	}
	verifier, err := g.catalog.Configure(g.snapshots.Current().Source(demoSource))
	if err != nil {
		return err
	}
	signed, err := verifier.Sign(providers.Draft{Path: "/in/" + demoSource, Now: time.Now()})
	if err != nil {
		return err
	}
	first, err := d.step(ctx, "a signed event", signed)
	if err != nil {
		return err
	}
	if first.status != http.StatusOK || first.duplicate {
		return errors.New("a signed event must be answered 200 and stored")
	}
	again, err := d.step(ctx, "the same again", signed)
	if err != nil {
		return err
	}
	if again.status != http.StatusOK || !again.duplicate || again.message != first.message {
		return errors.New("the same event must be answered 200 and recognised")
	}
	forgery, err := verifier.Sign(providers.Draft{Path: "/in/" + demoSource, Now: time.Now(), Forge: true})
	if err != nil {
		return err
	}
	forged, err := d.step(ctx, "a forged event", forgery)
	if err != nil {
		return err
	}
	if forged.status != http.StatusUnauthorized {
		return errors.New("a forged event must be answered 401")
	}

	step, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	if err := echo.await(step, "msg_"+first.message); err != nil {
		return err
	}
	d.say("at the handler    POST " + echo.url + " with webhook-id msg_" + first.message + ", answered 200")
	if err := d.awaitDone(step, first.message); err != nil {
		return err
	}
	d.say("final status      message " + first.message + " is DONE")
	return nil
}

func (d *dev) step(ctx context.Context, name string, signed *providers.Request) (sent, error) {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	answer, err := post(ctx, d.public, signed)
	if err != nil {
		return sent{}, fmt.Errorf("%s: %w", name, err)
	}
	d.say(fmt.Sprintf("%-17s %s", name, answer))
	return answer, nil
}

// register makes the demonstration's source and handler through the operators' API, or points the handler of
// an earlier start at this one's URL.
func (d *dev) register(ctx context.Context, echoURL string) error {
	status, err := d.operators.call(ctx, http.MethodPost, "/sources", map[string]any{
		"name": demoSource, "provider": "stripe", "secrets": []string{"whsec_" + randomText(24)},
	}, nil)
	if err != nil && status != http.StatusConflict {
		return fmt.Errorf("register the source: %w", err)
	}
	status, err = d.operators.call(ctx, http.MethodPost, "/handlers", map[string]any{
		"name": demoHandler, "url": echoURL, "sources": []string{demoSource}, "timeout": "5s",
	}, nil)
	if status == http.StatusConflict {
		_, err = d.operators.call(ctx, http.MethodPatch, "/handlers/"+demoHandler, map[string]any{"url": echoURL}, nil)
	}
	if err != nil {
		return fmt.Errorf("register the handler: %w", err)
	}
	d.say("source " + demoSource + " (provider stripe) and handler " + demoHandler + " are registered")
	return nil
}

func (d *dev) awaitDone(ctx context.Context, message string) error {
	for {
		var m struct{ Message struct{ Status string } }
		_, err := d.operators.call(ctx, http.MethodGet, "/messages/"+message, nil, &m)
		if err == nil && m.Message.Status == "DONE" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("message %s is %s, not DONE: %w", message, m.Message.Status, errors.Join(err, ctx.Err()))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// invite prints what can be done now.
func (d *dev) invite(databaseURL, keyFile string) {
	self := os.Args[0]
	if strings.Contains(self, "go-build") {
		self = "go run ./cmd/inboxd"
	}
	fmt.Fprintf(d.out, `
Point providers at   %s/in/{source}
Send a message       INBOXD_SECRET_KEYS="$(cat '%s')" %s send %s --to %s --database-url '%s'
Operators' API       %s/api/v1 (to read: %s/docs)
  with the token     %s
  for instance       curl -H 'Authorization: Bearer %s' %s/api/v1/messages
Metrics              %s/metrics
Ctrl-C stops everything; the data stays. --reset forgets it.
`, d.public, keyFile, self, demoSource, d.public, databaseURL, d.operators.url, d.operators.url, d.operators.token,
		d.operators.token, d.operators.url, d.operators.url)
}

// operators calls the operators' API.
type operators struct{ url, token string }

// call sends in and reads out, either of which may be nil. A problem is an error; the status tells which.
func (o operators) call(ctx context.Context, method, path string, in, out any) (status int, err error) {
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return 0, err
		}
		body = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, o.url+"/api/v1"+path, body)
	if err != nil {
		return 0, err
	}
	request.Header.Set("Authorization", "Bearer "+o.token)
	if in != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return response.StatusCode, err
	}
	if response.StatusCode >= 400 {
		return response.StatusCode, fmt.Errorf("%s %s: %s", method, path, text)
	}
	if out != nil {
		err = json.Unmarshal(text, out)
	}
	return response.StatusCode, err
}

// echo is the demonstration's handler: it takes every message and answers 200.
type echo struct {
	url    string
	server *http.Server
	ids    chan string // webhook-id of each request; never closed
}

func startEcho() (*echo, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start the echo handler: %w", err)
	}
	e := &echo{url: "http://" + listener.Addr().String() + "/echo", ids: make(chan string, 16)}
	e.server = &http.Server{ReadHeaderTimeout: 5 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body)
		select {
		case e.ids <- r.Header.Get("Webhook-Id"):
		default: // the demonstration is over; nobody listens
		}
	})}
	go func() { _ = e.server.Serve(listener) }()
	return e, nil
}

// await returns once the message has arrived; others may come before it.
func (e *echo) await(ctx context.Context, id string) error {
	for {
		select {
		case got := <-e.ids:
			if got == id {
				return nil
			}
		case <-ctx.Done():
			return fmt.Errorf("the message did not arrive at the handler: %w", ctx.Err())
		}
	}
}
