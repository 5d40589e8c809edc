package devpg

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// rootData is where Ensure keeps the data when root's folder is closed to the server's user. Not the
// temporary folder: what tidies that up would take single files out of a database.
var rootData = "/var/lib/inboxd-dev"

// Ensure finds or makes a PostgreSQL for development and returns the URL of a database, and a function
// that stops what was started. It tries, in order: o.URL; programs of PostgreSQL on this machine; a
// download of them into o.Dir. If nothing works, the error names the three ways.
//
// Where root's o.Dir can't be reached by the user that the server runs as (a checkout below a closed home),
// the data goes to a folder of its own below /var/lib/inboxd-dev, and o.Log is told.
func Ensure(ctx context.Context, o Options) (url string, stop func(context.Context) error, err error) {
	if o.URL != "" {
		return o.URL, func(context.Context) error { return nil }, nil
	}
	log := o.Log
	if log == nil {
		log = func(string) {}
	}
	acc, err := serverAccount()
	if err != nil {
		return "", nil, err
	}
	if closed, ok := errors.AsType[*UnreachableError](acc.reach(o.Dir)); ok {
		abs, err := filepath.Abs(o.Dir)
		if err != nil {
			return "", nil, err
		}
		sum := sha256.Sum256([]byte(abs))
		o.Dir = filepath.Join(rootData, hex.EncodeToString(sum[:6]))
		log(fmt.Sprintf("PostgreSQL runs as %s, who can't pass %s (mode %04o): its data is in %s",
			acc.name, closed.Parent, closed.Mode.Perm(), o.Dir))
	}
	c, err := Start(ctx, o)
	if errors.Is(err, ErrNotFound) {
		local := err
		if o.Binaries, err = embedded(ctx, o.Dir+"-programs", o.Mirror, log); err != nil {
			return "", nil, fmt.Errorf("%w and can't be downloaded: %w\n"+
				"There are three ways to give inboxd one:\n"+
				"  1. set INBOXD_DATABASE_URL to a PostgreSQL of yours\n"+
				"  2. install PostgreSQL %d or newer, so that initdb and postgres are in PATH or in their usual place\n"+
				"  3. let inboxd download it: it needs to reach %s",
				local, err, oldest, mirrorName(o.Mirror))
		}
		c, err = Start(ctx, o)
	}
	if err != nil {
		return "", nil, err
	}
	return c.URL(""), c.Stop, nil
}

// mavenCentral is where the programs are downloaded from unless a mirror is named.
const mavenCentral = "https://repo1.maven.org/maven2"

func mirrorName(mirror string) string {
	if mirror == "" {
		return mavenCentral
	}
	return mirror
}

// Embedded downloads the programs of PostgreSQL into dir, unless they are there. A download can't be
// interrupted: when ctx ends first, Embedded returns and the download ends with the process.
func Embedded(ctx context.Context, dir string) (Binaries, error) {
	return embedded(ctx, dir, "", func(string) {})
}

func embedded(ctx context.Context, dir, mirror string, log func(string)) (Binaries, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return Binaries{}, err
	}
	programs := filepath.Join(dir, "postgresql")
	if b, err := inspect(ctx, filepath.Join(programs, "bin")); err == nil {
		return b, nil
	}
	// What an interrupted extraction left would be taken for whole.
	if err := os.RemoveAll(programs); err != nil {
		return Binaries{}, fmt.Errorf("remove an incomplete PostgreSQL: %w", err)
	}
	log("downloading PostgreSQL from " + mirrorName(mirror))
	done := make(chan error, 1)
	go func() { done <- download(dir, programs, mirrorName(mirror)) }()
	select {
	case err = <-done:
	case <-ctx.Done():
		return Binaries{}, fmt.Errorf("download PostgreSQL: %w", context.Cause(ctx))
	}
	if err != nil {
		return Binaries{}, err
	}
	return inspect(ctx, filepath.Join(programs, "bin"))
}

// download makes the library fetch and unpack the programs into dir. The library has no call for just
// that: it also starts a server, as nobody else but the current user, which root may not be. So it is
// given a data folder that looks initialised and has nothing in it: its server ends at once, and what
// counts is whether the programs are there.
func download(dir, programs, mirror string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil { // open: root's server runs as another user
		return fmt.Errorf("download PostgreSQL: %w", err)
	}
	scratch := filepath.Join(dir, "scratch")
	if err := os.MkdirAll(scratch, 0o700); err != nil {
		return fmt.Errorf("download PostgreSQL: %w", err)
	}
	defer os.RemoveAll(scratch)
	release := embeddedpostgres.V17
	if err := os.WriteFile(filepath.Join(scratch, "PG_VERSION"), []byte(release[:2]), 0o600); err != nil {
		return fmt.Errorf("download PostgreSQL: %w", err)
	}
	port, err := freePort(context.Background())
	if err != nil {
		return fmt.Errorf("download PostgreSQL: %w", err)
	}
	server := embeddedpostgres.NewDatabase(embeddedpostgres.DefaultConfig().
		Version(release).
		BinaryRepositoryURL(mirror).
		CachePath(filepath.Join(dir, "downloads")).
		RuntimePath(filepath.Join(dir, "runtime")).
		BinariesPath(programs).
		DataPath(scratch).
		Port(uint32(port)).
		Logger(io.Discard))
	err = server.Start()
	if err == nil {
		return server.Stop()
	}
	if _, missing := os.Stat(filepath.Join(programs, "bin", "initdb")); missing != nil {
		return fmt.Errorf("download PostgreSQL from %s: %w", mirror, err)
	}
	return nil
}
