// Package postgres holds every SQL statement of inboxd's own database. The parts of inboxd say what they
// need of it in small interfaces of their own, which *DB fills; its errors are those of package inbox.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/inboxd/inboxd/inbox"
)

// DB is a pool of connections to inboxd's database. Its methods may be called from many goroutines.
type DB struct {
	pool             *pgxpool.Pool
	missedPartitions atomic.Int64
	secrets          Secrets
}

// connectTimeout bounds one attempt to connect, so that a host that swallows packets can't hold a flusher.
const connectTimeout = 3 * time.Second

// Open makes a pool of at most size connections. It connects when a connection is first needed, so it
// succeeds while the database is away; it fails only on a URL that can't be read. Without WithSecrets it
// can't store secrets, nor use those that are sealed or referred to.
func Open(ctx context.Context, url string, size int, options ...Option) (*DB, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		// pgx's text may repeat the URL with its password.
		return nil, errors.New("read the database URL: it is neither a postgres:// URL nor a list of key=value")
	}
	cfg.MaxConns = int32(size)
	cfg.ConnConfig.ConnectTimeout = connectTimeout
	if cfg.ConnConfig.RuntimeParams["application_name"] == "" {
		cfg.ConnConfig.RuntimeParams["application_name"] = "inboxd"
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("open the database pool: %w", err)
	}
	db := &DB{pool: pool}
	for _, option := range options {
		option(db)
	}
	return db, nil
}

// MissedPartitions returns how often a row met no partition, so that its writer made the day. The leader
// makes them two weeks ahead: more than none says that no leader has been at work.
func (db *DB) MissedPartitions() int64 { return db.missedPartitions.Load() }

// Close closes the pool; it waits for the connections in use.
func (db *DB) Close() { db.pool.Close() }

// Ready returns nil if the database answers and can be written to, else ErrUnavailable.
func (db *DB) Ready(ctx context.Context) error {
	var readOnly bool
	err := db.pool.QueryRow(ctx, `SELECT pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on'`).Scan(&readOnly)
	if err != nil {
		return fmt.Errorf("ask the database: %w", mapError(err))
	}
	if readOnly {
		return fmt.Errorf("ask the database: %w: it is read-only", inbox.ErrUnavailable)
	}
	return nil
}

// fault is what an error of PostgreSQL means for what was tried.
type fault int

const (
	// faultUnavailable: the server is away, read-only, overloaded or in an unknown state, or the
	// connection broke and nobody knows whether the commit happened.
	faultUnavailable fault = iota
	faultRefused           // the row itself: no retry can help
	faultTransient         // deadlock, serialization, lock or statement timeout: once more may help
	faultNoPartition       // nobody has made the day's partition
	faultNameTaken
)

// diagnose sorts err by its SQLSTATE. What it doesn't know is faultUnavailable: a sender that tries again
// loses nothing, one that is told "stored" or "never" might.
func diagnose(err error) fault {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return faultUnavailable
	}
	switch pgErr.Code {
	case "23514":
		if pgErr.ConstraintName == "" {
			return faultNoPartition // PostgreSQL has no code of its own for it
		}
		return faultRefused
	case "23505":
		if pgErr.ConstraintName == "source_name" || pgErr.ConstraintName == "handler_name" ||
			pgErr.ConstraintName == "token_name_key" {
			return faultNameTaken
		}
		return faultRefused
	case "40001", "40P01", "55P03", "57014":
		return faultTransient
	case "54000":
		return faultRefused // an index row that is too large
	}
	switch pgErr.Code[:2] {
	case "22", "23":
		return faultRefused
	}
	return faultUnavailable
}

// mapError turns an error of pgx into one of package inbox. It keeps the SQLSTATE and the constraint, but
// neither the server's message nor its detail: they can repeat a row.
func mapError(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return inbox.ErrNotFound
	}
	kind := inbox.ErrUnavailable
	switch diagnose(err) {
	case faultRefused:
		kind = inbox.ErrRefused
	case faultNameTaken:
		kind = inbox.ErrNameTaken
	}
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return fmt.Errorf("%w: SQLSTATE %s %s", kind, pgErr.Code, pgErr.ConstraintName)
	}
	return fmt.Errorf("%w: %w", kind, err)
}

// planned makes PostgreSQL plan a statement each time it runs. A cached plan that was made while the table
// was empty scans it whole when it is not.
const planned = pgx.QueryExecModeCacheDescribe
