package postgres

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/inboxd/inboxd/inbox"
)

// pollInterval is how often an instance looks for a change that another one made. With the reload's own
// time it keeps the promise that a change is effective everywhere within a second.
const pollInterval = 400 * time.Millisecond

// Snapshots keeps the current sources and handlers in memory.
type Snapshots struct {
	db      *DB
	current atomic.Pointer[inbox.Snapshot]
	loading sync.Mutex      // held while one caller loads; the others wait for its result
	stored  *inbox.Snapshot // the current one with references as they are stored; guarded by loading
}

// Snapshots makes an empty one, of version 0. Refresh loads it, Run keeps it current.
func (db *DB) Snapshots() *Snapshots {
	s := &Snapshots{db: db}
	s.stored = &inbox.Snapshot{}
	s.current.Store(s.stored)
	return s
}

// Current returns the latest snapshot that was loaded; never nil. Its version is 0 until one was.
func (s *Snapshots) Current() *inbox.Snapshot { return s.current.Load() }

// Refresh loads the snapshot if its version has changed, looks up what its secrets refer to, and leaves out those
// that have ended: a file that has changed, or a secret's end, makes a new snapshot of the same version.
func (s *Snapshots) Refresh(ctx context.Context) error {
	s.loading.Lock()
	defer s.loading.Unlock()
	next, now, err := s.db.loadSnapshot(ctx, s.Current().Version)
	if err != nil {
		return fmt.Errorf("load sources and handlers: %w", mapError(err))
	}
	if next != nil {
		s.stored = next
	}
	if resolved := s.db.resolveSnapshot(s.stored, now); next != nil || !sameSecrets(resolved, s.Current()) {
		s.current.Store(resolved)
	}
	return nil
}

// Run polls until ctx is done. While the database is away the last snapshot stays: ingest can't commit
// with a wrong one, since the statement compares the version.
func (s *Snapshots) Run(ctx context.Context) error {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			timeout, cancel := context.WithTimeout(ctx, connectTimeout)
			_ = s.Refresh(timeout) // readiness reports the database; here it would only be said again
			cancel()
		}
	}
}

const (
	readVersion = `SELECT version, now() FROM snapshot_version`

	readSources = `
SELECT id, name, provider, variant, settings, secrets, secret_info, body_limit, enabled, created_at, updated_at, now()
FROM source WHERE deleted_at IS NULL ORDER BY name`

	readHandlers = `
SELECT id, name, url, sources, message_types, secrets, secret_info, concurrency, timeout, max_retry_count, backoff_base,
       backoff_cap, permanent_statuses, paused, credentials, created_at, updated_at, now()
FROM handler WHERE deleted_at IS NULL ORDER BY name`
)

// loadSnapshot reads version, sources and handlers in one REPEATABLE READ transaction, so that the version
// is theirs. It returns nil if the version is the known one, and the database's time.
func (db *DB) loadSnapshot(ctx context.Context, known int64) (next *inbox.Snapshot, now time.Time, err error) {
	var version int64
	if err := db.pool.QueryRow(ctx, readVersion).Scan(&version, &now); err != nil {
		return nil, now, err
	}
	if version == known {
		return nil, now, nil
	}
	next = &inbox.Snapshot{}
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, db.pool, options, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, readVersion).Scan(&next.Version, &now); err != nil {
			return err
		}
		rows, _ := tx.Query(ctx, readSources)
		var err error
		if next.Sources, err = pgx.CollectRows(rows, db.scanSource); err != nil {
			return err
		}
		rows, _ = tx.Query(ctx, readHandlers)
		next.Handlers, err = pgx.CollectRows(rows, db.scanHandler)
		return err
	})
	if err != nil {
		return nil, now, err
	}
	return next, now, nil
}

func (db *DB) scanSource(row pgx.CollectableRow) (*inbox.Source, error) {
	var (
		s      inbox.Source
		stored storedSecrets
	)
	err := row.Scan(&s.ID, &s.Name, &s.Provider, &s.Variant, &s.Settings, &stored.texts, &stored.info, &s.BodyLimit, &s.Enabled,
		&s.CreatedAt, &s.UpdatedAt, &stored.now)
	s.Secrets, s.SecretInfo = db.openSecrets(sourceSecret, s.Name, stored, s.UpdatedAt)
	_, s.SecretFault = db.resolve(s.Secrets)
	return &s, err
}

func (db *DB) scanHandler(row pgx.CollectableRow) (*inbox.Handler, error) {
	var (
		h           inbox.Handler
		stored      storedSecrets
		credentials *string
	)
	err := row.Scan(&h.ID, &h.Name, &h.URL, &h.Sources, &h.MessageTypes, &stored.texts, &stored.info, &h.Concurrency, &h.Timeout,
		&h.MaxRetryCount, &h.Backoff.Base, &h.Backoff.Cap, &h.PermanentStatuses, &h.Paused, &credentials, &h.CreatedAt, &h.UpdatedAt, &stored.now)
	h.Secrets, h.SecretInfo = db.openSecrets(handlerSecret, h.Name, stored, h.UpdatedAt)
	h.Credentials = db.openCredentials(h.Name, credentials)
	h.SecretFault = db.handlerFault(&h)
	return &h, err
}
