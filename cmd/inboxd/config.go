package main

import (
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/rs/zerolog"

	"github.com/inboxd/inboxd/inbox"
	"github.com/inboxd/inboxd/internal/egress"
	"github.com/inboxd/inboxd/internal/seal"
	"github.com/inboxd/inboxd/postgres"
)

// fromEnvironment are the flags that INBOXD_{FLAG} stands for in any command. serve takes all of its flags from there.
var fromEnvironment = []string{"database-url", "secret-keys", "url", "token", "listen", "admin-listen", "log-level"}

// keepSettings takes the variables of all other flags away: one that happens to be set, such as INBOXD_SOURCE, must
// not filter a list, and INBOXD_RESET must not forget data.
func keepSettings(k *kong.Kong) error {
	return kong.Visit(k.Model, func(node kong.Visitable, next kong.Next) error {
		if command, ok := node.(*kong.Node); ok && command.Name != "serve" {
			for _, flag := range command.Flags {
				if !slices.Contains(fromEnvironment, flag.Name) {
					flag.Envs, flag.Tag.Envs = nil, nil
				}
			}
		}
		return next(nil)
	})
}

// databaseFlags is how a command reaches the database.
type databaseFlags struct {
	DatabaseURL string `required:"" placeholder:"URL" help:"PostgreSQL, as postgres://user@host/database."`
}

// secretFlags is what secrets in the database are sealed and opened with.
type secretFlags struct {
	SecretKeys string `placeholder:"ID:KEY,…" help:"Keys that secrets are sealed with; the first seals, all open. inboxd secrets key makes one. Better given in the environment."`
}

// secrets returns what the database is opened with.
func (f *secretFlags) secrets() (postgres.Secrets, error) {
	keys, err := seal.Parse(f.SecretKeys)
	if err != nil {
		return postgres.Secrets{}, fmt.Errorf("--secret-keys: %w", err)
	}
	return postgres.Secrets{Keys: keys, Lookup: lookupSecret}, nil
}

// maxSecretFile is the most bytes that a file of a secret may have.
const maxSecretFile = 16 << 10

// lookupSecret returns what env:NAME or file:/path stands for; of a file without the line end after it. Its
// errors name the reference and never what was found.
func lookupSecret(reference string) (inbox.Secret, error) {
	var text string
	if name, ok := strings.CutPrefix(reference, "env:"); ok {
		if strings.HasPrefix(name, "INBOXD_") {
			// These are inboxd's own: whoever may register a source must not make it compute with them.
			return "", fmt.Errorf("the secret %s is a setting of inboxd", reference)
		}
		if text, ok = os.LookupEnv(name); !ok {
			return "", fmt.Errorf("the secret %s is not set", reference)
		}
	} else {
		path := strings.TrimPrefix(reference, "file:")
		if !filepath.IsAbs(path) {
			return "", fmt.Errorf("the secret %s is not an absolute path", reference)
		}
		info, err := os.Stat(path)
		if err != nil {
			return "", fmt.Errorf("the secret %s can't be read: %w", reference, errors.Unwrap(err))
		}
		// Files that the kernel makes up have the size 0, such as /proc/self/environ, which has inboxd's own settings.
		if !info.Mode().IsRegular() || info.Size() == 0 || info.Size() > maxSecretFile {
			return "", fmt.Errorf("the secret %s is not a file of 1 to %d bytes", reference, maxSecretFile)
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return "", fmt.Errorf("the secret %s can't be read: %w", reference, errors.Unwrap(err))
		}
		text = strings.TrimRight(string(content), "\r\n")
	}
	if secret := inbox.Secret(text); !secret.Blank() {
		return secret, nil
	}
	return "", fmt.Errorf("the secret %s is empty", reference)
}

// gatewayFlags are the gateway's settings. README.md explains each; check reports every mistake at once.
type gatewayFlags struct {
	secretFlags
	Roles        []string `default:"ingest,processor,admin" help:"What this instance does: ingest, processor, admin."`
	Listen       string   `default:"127.0.0.1:8080" help:"Public listener: /in/{source}, /healthz, /readyz."`
	AdminListen  string   `default:"127.0.0.1:8081" help:"Operators' listener: API, /metrics, health."`
	TLSCert      string   `placeholder:"FILE" help:"Certificate of the public listener; with --tls-key."`
	TLSKey       string   `placeholder:"FILE" help:"Its key."`
	AdminTLSCert string   `placeholder:"FILE" help:"Certificate of the operators' listener; with --admin-tls-key."`
	AdminTLSKey  string   `placeholder:"FILE" help:"Its key."`

	Connections   int           `default:"16" help:"Database connections of ingest and processor; the operators' API has 4 of its own."`
	Flushers      int           `default:"2" help:"Commits under way at once. While one is, the next sets out only with as many messages."`
	BatchRows     int           `default:"256" help:"Most messages of one commit."`
	BodyLimit     int64         `default:"1048576" help:"Bytes of a request's body, where the source sets no limit."`
	IntakeBytes   int64         `default:"67108864" help:"Bytes of all requests that are not answered yet; beyond it 503."`
	IntakeCount   int           `default:"4096" help:"Requests that wait for a commit; beyond it 503."`
	CommitTimeout time.Duration `default:"5s" help:"How long a request waits for its commit before it is answered 503."`
	DrainDelay    time.Duration `default:"3s" help:"How long requests are still taken after SIGTERM, while /readyz says no."`
	Drain         time.Duration `default:"20s" help:"How long attempts under way may take after SIGTERM."`

	EgressAllow []string `placeholder:"CIDR|NAME,…" help:"Networks, host names and *.names that handlers must be in; empty: anywhere."`
	EgressDeny  []string `placeholder:"CIDR|NAME,…" help:"Networks and host names that handlers must not be in, besides link-local and cloud metadata; private is loopback and all private networks. It wins over --egress-allow."`
	EgressProxy string   `placeholder:"URL" help:"Proxy (http or https, CONNECT) to handlers. Names are still resolved and checked here. Better given in the environment if it holds a password."`

	CredentialRefs []string `placeholder:"GLOB,…" help:"What handlers' credentials may refer to, such as file:/run/secrets/handlers/* or env:HANDLER_*; empty: nothing. Whoever may register a handler can read it."`

	LogLevel string `default:"info" enum:"debug,info,warn,error" help:"debug, info, warn or error."`
}

// defaultGatewayFlags returns the settings of a gateway that was given none: those of the struct's tags.
func defaultGatewayFlags() gatewayFlags {
	var flags gatewayFlags
	parser, err := kong.New(&flags)
	if err == nil {
		_, err = parser.Parse(nil)
	}
	if err != nil {
		panic(err) // the tags above are wrong
	}
	return flags
}

// check returns every mistake in the settings, with what would be right.
func (f *gatewayFlags) check() error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if len(f.Roles) == 0 {
		wrong("--roles is empty: give at least one of ingest, processor, admin")
	}
	for _, role := range f.Roles {
		if !slices.Contains([]string{"ingest", "processor", "admin"}, role) {
			wrong("--roles: %q is none of ingest, processor, admin", role)
		}
	}
	for flag, address := range map[string]string{"listen": f.Listen, "admin-listen": f.AdminListen} {
		if _, _, err := net.SplitHostPort(address); err != nil {
			wrong("--%s: %q is not host:port", flag, address)
		}
	}
	if (f.TLSCert == "") != (f.TLSKey == "") {
		wrong("--tls-cert and --tls-key go together")
	}
	if (f.AdminTLSCert == "") != (f.AdminTLSKey == "") {
		wrong("--admin-tls-cert and --admin-tls-key go together")
	}
	for flag, n := range map[string]int64{
		"connections": int64(f.Connections), "flushers": int64(f.Flushers), "batch-rows": int64(f.BatchRows),
		"body-limit": f.BodyLimit, "intake-bytes": f.IntakeBytes, "intake-count": int64(f.IntakeCount),
		"commit-timeout": int64(f.CommitTimeout), "drain": int64(f.Drain),
	} {
		if n <= 0 {
			wrong("--%s must be more than zero", flag)
		}
	}
	if f.Connections < f.Flushers+minConnections {
		wrong("--connections: %d are too few for %d flushers; at least %d", f.Connections, f.Flushers, f.Flushers+minConnections)
	}
	if f.IntakeBytes < f.BodyLimit {
		wrong("--intake-bytes must hold at least one body of --body-limit")
	}
	if f.DrainDelay < 0 {
		wrong("--drain-delay must not be negative")
	}
	if _, err := f.secrets(); err != nil {
		errs = append(errs, err)
	}
	if _, err := f.egress(); err != nil {
		errs = append(errs, err)
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}

// minConnections is what an instance needs besides its flushers': a claim, the reading of messages, two
// recorders, the leader, the snapshot, the listener.
const minConnections = 7

// secrets adds what credentials may refer to.
func (f *gatewayFlags) secrets() (postgres.Secrets, error) {
	secrets, err := f.secretFlags.secrets()
	errs := []error{err}
	for _, glob := range f.CredentialRefs {
		if _, err := path.Match(glob, ""); err != nil || !inbox.Secret(glob).Reference() {
			errs = append(errs, fmt.Errorf("--credential-refs: %q must begin with env: or file:, and be a glob as path.Match reads it", glob))
		}
	}
	secrets.LookupCredential = func(reference string) (inbox.Secret, error) {
		if !mayRefer(f.CredentialRefs, reference) {
			return "", fmt.Errorf("the credential %s is not among --credential-refs", reference)
		}
		return lookupSecret(reference)
	}
	return secrets, errors.Join(errs...)
}

// mayRefer reports whether one of the globs has the reference. A path that isn't clean would lead out of a folder.
func mayRefer(globs []string, reference string) bool {
	if file, ok := strings.CutPrefix(reference, "file:"); ok && filepath.Clean(file) != file {
		return false
	}
	return slices.ContainsFunc(globs, func(glob string) bool {
		ok, err := path.Match(glob, reference)
		return ok && err == nil
	})
}

// egress returns the rules for what handlers may be.
func (f *gatewayFlags) egress() (policy egress.Policy, err error) {
	var errs []error
	if policy.Allow, err = egress.ParseRules(f.EgressAllow); err != nil {
		errs = append(errs, fmt.Errorf("--egress-allow: %w", err))
	}
	if policy.Deny, err = egress.ParseRules(f.EgressDeny); err != nil {
		errs = append(errs, fmt.Errorf("--egress-deny: %w", err))
	}
	if f.EgressProxy != "" {
		if policy.Proxy, err = egress.ParseProxy(f.EgressProxy); err != nil {
			errs = append(errs, fmt.Errorf("--egress-proxy: %w", err))
		}
	}
	return policy, errors.Join(errs...)
}

// loadTLS reads a certificate; without one it returns nil, for plain HTTP.
func loadTLS(cert, key string) (*tls.Config, error) {
	if cert == "" {
		return nil, nil
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("load the certificate %s and its key: %w", cert, err)
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}, nil
}

// tuneGC lets the heap grow to five times what lives in it, some 20 MB, before it is collected: at
// saturation a sixth of the gateway's CPU went into collections. GOGC, if set, is obeyed.
func tuneGC() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
}

func newLogger(w io.Writer, level string) zerolog.Logger {
	parsed, err := zerolog.ParseLevel(level)
	if err != nil {
		parsed = zerolog.InfoLevel
	}

	return zerolog.New(zerolog.SyncWriter(w)).Level(parsed).With().Timestamp().Logger()
}

// newOwner names this instance: a person can tell where it runs, and no two are the same.
func newOwner() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	var random [4]byte
	_, _ = rand.Read(random[:])
	return fmt.Sprintf("%s-%d-%s", host, os.Getpid(), hex.EncodeToString(random[:]))
}
