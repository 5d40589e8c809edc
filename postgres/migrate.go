package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/inboxd/inboxd/migrations"
)

// Migration is one numbered step of the schema.
type Migration struct {
	Version   int64
	Name      string    // of its file; "" where this build doesn't know it, since a newer release has applied it
	AppliedAt time.Time // zero while it is pending
}

// Pending reports whether the database still lacks the migration.
func (m Migration) Pending() bool { return m.AppliedAt.IsZero() }

// lockPeriod and lockTries: how often, in seconds, Migrate asks for the lock that another instance holds,
// and how many times. An hour, since the other may be building an index on a large table.
const (
	lockPeriod = 1
	lockTries  = 3600
)

// Migrate brings the schema of the database at url up to date. Any number of instances may call it at
// once: one does the work, the others wait for it. Each migration is one transaction, so that one which
// was interrupted leaves nothing and runs again. A database that a newer release has migrated is left as
// it is: the release before must run on it.
//
// The lock belongs to the session, so url must not lead through a pooler that shares sessions.
func Migrate(ctx context.Context, url string) error {
	db, provider, err := openMigrations(url)
	if err != nil {
		return err
	}
	defer db.Close()
	if _, err := provider.Up(ctx); err != nil {
		return fmt.Errorf("migrate the database: %w", err)
	}
	return nil
}

// appliedMigrations reads goose's ledger. A version that was rolled back and applied again has several rows.
const appliedMigrations = `
SELECT version_id, max(tstamp)::timestamptz
FROM goose_db_version
WHERE version_id > 0 AND is_applied
GROUP BY version_id
ORDER BY version_id`

// MigrationStatus lists the migrations that this build or the database knows, oldest first. It changes
// nothing, so it also works on an empty database and on a read-only one.
func MigrationStatus(ctx context.Context, url string) ([]Migration, error) {
	db, provider, err := openMigrations(url)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	applied, err := appliedAt(ctx, db)
	if err != nil {
		return nil, fmt.Errorf("read which migrations are applied: %w", err)
	}
	var list []Migration
	for _, s := range provider.ListSources() {
		list = append(list, Migration{Version: s.Version, Name: path.Base(s.Path)})
	}
	for _, a := range applied {
		i := 0
		for i < len(list) && list[i].Version < a.Version {
			i++
		}
		if i < len(list) && list[i].Version == a.Version {
			list[i].AppliedAt = a.AppliedAt
			continue
		}
		list = append(list[:i], append([]Migration{a}, list[i:]...)...)
	}
	return list, nil
}

// appliedAt returns the applied migrations, without their names; none where goose has never run.
func appliedAt(ctx context.Context, db *sql.DB) ([]Migration, error) {
	var exists bool
	if err := db.QueryRowContext(ctx, `SELECT to_regclass('goose_db_version') IS NOT NULL`).Scan(&exists); err != nil {
		return nil, err
	}
	if !exists {
		return nil, nil
	}
	rows, err := db.QueryContext(ctx, appliedMigrations)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var list []Migration
	for rows.Next() {
		var m Migration
		if err := rows.Scan(&m.Version, &m.AppliedAt); err != nil {
			return nil, err
		}
		list = append(list, m)
	}
	return list, rows.Err()
}

// openMigrations gives goose the embedded files and a database/sql pool, which the caller closes. It
// doesn't connect yet.
func openMigrations(url string) (*sql.DB, *goose.Provider, error) {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		// pgx's text may repeat the URL with its password.
		return nil, nil, errors.New("read the database URL: it is neither a postgres:// URL nor a list of key=value")
	}
	cfg.ConnectTimeout = connectTimeout
	if cfg.RuntimeParams["application_name"] == "" {
		cfg.RuntimeParams["application_name"] = "inboxd migrate"
	}
	// An instance that waits asks again and again, rather than in one blocking call: a statement that
	// waits holds a snapshot, for which CREATE INDEX CONCURRENTLY in the working instance would wait in turn.
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(lockPeriod, lockTries))
	if err != nil {
		return nil, nil, fmt.Errorf("make the migrations' lock: %w", err)
	}
	db := stdlib.OpenDB(*cfg)
	provider, err := goose.NewProvider(goose.DialectPostgres, db, migrations.FS, goose.WithSessionLocker(locker))
	if err != nil {
		return nil, nil, fmt.Errorf("read the migrations: %w", errors.Join(err, db.Close()))
	}
	return db, provider, nil
}
