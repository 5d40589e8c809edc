// Package pgtest gives a test a PostgreSQL database of its own, with inboxd's schema.
//
// All packages of one `go test ./...` share one private server, which is started by the first test that
// asks and ends, with its files, soon after the go command does. No TestMain is needed. With
// TEST_DATABASE_URL set, the databases are made on that server instead, whose role must be allowed to.
//
// It imports package postgres, so tests of that package live in postgres_test.
package pgtest

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/inboxd/inboxd/internal/devpg"
	"github.com/inboxd/inboxd/migrations"
	"github.com/inboxd/inboxd/postgres"
)

// DB is a test's own database.
type DB struct {
	URL  string
	Name string
}

// cleanupTimeout bounds what is done after a test, whose own context has ended by then.
const cleanupTimeout = 30 * time.Second

// New returns a fresh database with inboxd's schema. It is dropped when the test ends, even if connections
// to it are open. Tests that call it can run in parallel.
func New(t testing.TB) *DB {
	t.Helper()
	s, err := server()
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	db, err := s.create(t.Context())
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		if err := s.drop(ctx, db); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})
	return db
}

// Cluster starts a PostgreSQL server for this test alone, to be stopped, killed or paused by it. URL("") is
// a database with inboxd's schema. Settings win over those for tests (fsync is off, for instance). The
// server and its files are gone when the test ends.
func Cluster(t testing.TB, settings map[string]string) *devpg.Cluster {
	t.Helper()
	c, err := ownCluster(t.Context(), settings)
	if errors.Is(err, devpg.ErrNotFound) && os.Getenv(urlVariable) != "" {
		t.Skipf("pgtest: this test needs the programs of PostgreSQL, not just %s: %v", urlVariable, err)
	}
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		if err := errors.Join(c.Kill(), c.Stop(ctx), devpg.Remove(ctx, c.Dir())); err != nil {
			t.Errorf("pgtest: remove the test's server: %v", err)
		}
	})
	return c
}

// urlVariable names a server to use instead of a private one.
const urlVariable = "TEST_DATABASE_URL"

// server is where this process makes its databases; its template exists. It is found once.
var server = sync.OnceValues(func() (*admin, error) {
	// Not a test's context: the first test's end must not fail the others.
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	a := &admin{url: os.Getenv(urlVariable)}
	private := a.url == ""
	if private {
		var err error
		if a.url, err = sharedServer(ctx); err != nil {
			return nil, err
		}
	}
	return a, a.run(ctx, func(conn *pgx.Conn) error {
		version, err := strconv.Atoi(conn.PgConn().ParameterStatus("server_version")[:2])
		if err != nil {
			return fmt.Errorf("read the test server's version: %w", err)
		}
		if private && version >= 15 {
			// To copy the files takes half the time of logging them page by page, where the checkpoints that
			// it needs don't wait for the disk.
			a.copyOptions = " STRATEGY file_copy"
		}
		return makeTemplate(ctx, conn, a.url)
	})
})

// admin runs statements on the server itself.
type admin struct {
	url         string
	copyOptions string // of CREATE DATABASE

	mu   sync.Mutex
	idle []*pgx.Conn // to connect takes a good part of the time that a test waits for its database
}

// run calls f with a connection that nobody else uses meanwhile.
func (a *admin) run(ctx context.Context, f func(*pgx.Conn) error) error {
	a.mu.Lock()
	var conn *pgx.Conn
	if n := len(a.idle); n > 0 {
		conn, a.idle = a.idle[n-1], a.idle[:n-1]
	}
	a.mu.Unlock()
	if conn == nil {
		var err error
		if conn, err = pgx.Connect(ctx, a.url); err != nil {
			return fmt.Errorf("connect to the test server: %w", err)
		}
	}
	if err := f(conn); err != nil {
		// It may be broken, or hold a lock.
		return errors.Join(err, conn.Close(context.WithoutCancel(ctx)))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.idle = append(a.idle, conn)
	return nil
}

// exec runs one statement.
func (a *admin) exec(ctx context.Context, statement string) error {
	return a.run(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, statement)
		return err
	})
}

// create copies the template into a database with a name of its own.
func (a *admin) create(ctx context.Context) (*DB, error) {
	db := &DB{Name: testPrefix + strings.ToLower(rand.Text()[:16])}
	var err error
	if db.URL, err = withDatabase(a.url, db.Name); err != nil {
		return nil, err
	}
	if err := a.exec(ctx, `CREATE DATABASE `+quote(db.Name)+` TEMPLATE `+quote(template())+a.copyOptions); err != nil {
		return nil, fmt.Errorf("create the test's database: %w", err)
	}
	return db, nil
}

// drop removes the database, whoever is connected to it.
func (a *admin) drop(ctx context.Context, db *DB) error {
	if err := a.exec(ctx, `DROP DATABASE IF EXISTS `+quote(db.Name)+` WITH (FORCE)`); err != nil {
		return fmt.Errorf("drop the test's database: %w", err)
	}
	return nil
}

// template is the name of the migrated database that tests get copies of. It changes with the migrations,
// and with the day, since they make the partitions of the days to come.
var template = sync.OnceValue(func() string {
	h := sha256.New()
	err := fs.WalkDir(migrations.FS, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(migrations.FS, path)
		fmt.Fprintf(h, "%s %d\n%s", path, len(text), text)
		return err
	})
	if err != nil {
		panic(err) // embedded files can be read
	}
	return templatePrefix + day(0) + hex.EncodeToString(h.Sum(nil)[:6])
})

const (
	templatePrefix = "inboxd_template_"
	testPrefix     = "inboxd_test_"

	// templateLock is the advisory lock under which the template is made; any number will do.
	templateLock = 7_305_794_912
)

// makeTemplate makes the template unless it is there. It is migrated under another name and renamed, so
// that one that was interrupted is never taken for whole.
func makeTemplate(ctx context.Context, conn *pgx.Conn, url string) error {
	if _, err := conn.Exec(ctx, `SELECT pg_advisory_lock($1)`, templateLock); err != nil {
		return fmt.Errorf("wait for the template database: %w", err)
	}
	// After an error the connection is closed, which gives up the lock too.
	if err := makeTemplateLocked(ctx, conn, url); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, `SELECT pg_advisory_unlock($1)`, templateLock); err != nil {
		return fmt.Errorf("give up the template's lock: %w", err)
	}
	return nil
}

func makeTemplateLocked(ctx context.Context, conn *pgx.Conn, url string) error {
	var exists bool
	err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`, template()).Scan(&exists)
	if err != nil {
		return fmt.Errorf("look for the template database: %w", err)
	}
	if exists {
		return nil
	}
	if err := dropStale(ctx, conn); err != nil {
		return err
	}
	fresh := template() + "_new"
	if _, err := conn.Exec(ctx, `DROP DATABASE IF EXISTS `+quote(fresh)+` WITH (FORCE)`); err != nil {
		return fmt.Errorf("drop an unfinished template database: %w", err)
	}
	if _, err := conn.Exec(ctx, `CREATE DATABASE `+quote(fresh)); err != nil {
		return fmt.Errorf("create the template database: %w", err)
	}
	target, err := withDatabase(url, fresh)
	if err != nil {
		return err
	}
	if err := postgres.Migrate(ctx, target); err != nil {
		return err
	}
	// Nobody may connect to it any more: CREATE DATABASE refuses a template that is in use.
	if _, err := conn.Exec(ctx, `ALTER DATABASE `+quote(fresh)+` WITH ALLOW_CONNECTIONS false`); err != nil {
		return fmt.Errorf("close the template database: %w", err)
	}
	if _, err := conn.Exec(ctx, `ALTER DATABASE `+quote(fresh)+` RENAME TO `+quote(template())); err != nil {
		return fmt.Errorf("finish the template database: %w", err)
	}
	return nil
}

// dropStale drops the templates of the days before yesterday; a run that began before midnight may still
// copy yesterday's.
func dropStale(ctx context.Context, conn *pgx.Conn) error {
	rows, err := conn.Query(ctx, `SELECT datname FROM pg_database WHERE starts_with(datname, $1) AND datname < $2`,
		templatePrefix, templatePrefix+day(-1))
	if err != nil {
		return fmt.Errorf("look for old template databases: %w", err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("look for old template databases: %w", err)
	}
	for _, name := range names {
		if _, err := conn.Exec(ctx, `DROP DATABASE IF EXISTS `+quote(name)+` WITH (FORCE)`); err != nil {
			return fmt.Errorf("drop an old template database: %w", err)
		}
	}
	return nil
}

// day is how names say the day that is n days after today.
func day(n int) string { return time.Now().UTC().AddDate(0, 0, n).Format("20060102_") }

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

// withDatabase returns the URL with another database.
func withDatabase(admin, name string) (string, error) {
	u, err := url.Parse(admin)
	if err != nil || u.Scheme == "" {
		return "", errors.New(urlVariable + " isn't a postgres:// URL")
	}
	u.Path = "/" + name
	return u.String(), nil
}
