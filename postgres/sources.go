package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/inboxd/inboxd/inbox"
)

// Sources returns all sources that are not deleted, by name.
func (db *DB) Sources(ctx context.Context) ([]*inbox.Source, error) {
	rows, _ := db.pool.Query(ctx, readSources)
	sources, err := pgx.CollectRows(rows, db.scanSource)
	if err != nil {
		return nil, fmt.Errorf("read sources: %w", mapError(err))
	}
	return sources, nil
}

const readSource = `
SELECT id, name, provider, variant, settings, secrets, secret_info, body_limit, enabled, created_at, updated_at, now()
FROM source WHERE name = @name AND deleted_at IS NULL`

// Source returns the source of that name, or ErrNotFound.
func (db *DB) Source(ctx context.Context, name string) (*inbox.Source, error) {
	rows, _ := db.pool.Query(ctx, readSource, pgx.StrictNamedArgs{"name": name})
	source, err := pgx.CollectExactlyOneRow(rows, db.scanSource)
	if err != nil {
		return nil, fmt.Errorf("read source %q: %w", name, mapError(err))
	}
	return source, nil
}

const readSourceByID = `
SELECT id, name, provider, variant, settings, secrets, secret_info, body_limit, enabled, created_at, updated_at, now()
FROM source WHERE id = @id`

// SourceByID returns the source of that number, a deleted one too, or ErrNotFound.
func (db *DB) SourceByID(ctx context.Context, id int64) (*inbox.Source, error) {
	rows, _ := db.pool.Query(ctx, readSourceByID, pgx.StrictNamedArgs{"id": id})
	source, err := pgx.CollectExactlyOneRow(rows, db.scanSource)
	if err != nil {
		return nil, fmt.Errorf("read source %d: %w", id, mapError(err))
	}
	return source, nil
}

const insertSource = `
INSERT INTO source (name, provider, variant, settings, secrets, secret_info, body_limit, enabled)
VALUES (@name, @provider, @variant, @settings, @secrets, @secret_info, @body_limit, @enabled)
RETURNING id, created_at, updated_at`

// CreateSource stores a new source and fills in its number and times. It fails with ErrNameTaken if
// another has its name.
func (db *DB) CreateSource(ctx context.Context, by inbox.Actor, s *inbox.Source) error {
	secrets, err := db.sealSecrets(sourceSecret, s.Name, s.Secrets, nil)
	if err != nil {
		return fmt.Errorf("create source %q: %w", s.Name, err)
	}
	err = pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		now, err := databaseTime(ctx, tx)
		if err != nil {
			return err
		}
		args := sourceArgs(s, secrets)
		args["name"] = s.Name
		s.SecretInfo, args["secret_info"] = storeInfo(s.Secrets, nil, secrets, now)
		if err := tx.QueryRow(ctx, insertSource, args).Scan(&s.ID, &s.CreatedAt, &s.UpdatedAt); err != nil {
			return err
		}
		return audit(ctx, tx, by, change{action: inbox.SourceCreate, object: s.Name, source: s.ID, after: auditSource(s, nil)})
	})
	if err != nil {
		return fmt.Errorf("create source %q: %w", s.Name, mapError(err))
	}
	return nil
}

const updateSource = `
UPDATE source
SET provider = @provider, variant = @variant, settings = @settings, secrets = @secrets, secret_info = @secret_info,
    body_limit = @body_limit, enabled = @enabled, updated_at = now()
WHERE id = @id
RETURNING updated_at`

// ChangeSource reads a source, lets edit work on it and stores it, under the row's lock: of two changes
// at once the later one sees the earlier. An error of edit is returned as it is and nothing stored. The
// name stays. Secrets that have ended are forgotten.
func (db *DB) ChangeSource(ctx context.Context, by inbox.Actor, name string, edit func(*inbox.Source) error) (*inbox.Source, error) {
	return db.changeSource(ctx, by, inbox.SourceChange, name, func(s *inbox.Source, _ time.Time) error { return edit(s) })
}

// ChangeSourceSecrets is ChangeSource for an edit of the secrets, which is told the database's time and is written
// down as the action.
func (db *DB) ChangeSourceSecrets(
	ctx context.Context, by inbox.Actor, action inbox.Action, name string, edit func(s *inbox.Source, now time.Time) error,
) (*inbox.Source, error) {
	return db.changeSource(ctx, by, action, name, edit)
}

func (db *DB) changeSource(
	ctx context.Context, by inbox.Actor, action inbox.Action, name string, edit func(*inbox.Source, time.Time) error,
) (*inbox.Source, error) {
	var (
		source  *inbox.Source
		refused error
	)
	err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, readSource+" FOR UPDATE", pgx.StrictNamedArgs{"name": name})
		var err error
		if source, err = pgx.CollectExactlyOneRow(rows, db.scanSource); err != nil {
			return err
		}
		now, err := databaseTime(ctx, tx)
		if err != nil {
			return err
		}
		before := slices.Clone(source.Secrets)
		was := auditSource(source, source.SecretInfo)
		known := source.SecretInfo
		if refused = edit(source, now); refused != nil {
			return refused
		}
		var secrets []string
		if secrets, refused = db.sealSecrets(sourceSecret, name, source.Secrets, before); refused != nil {
			return refused
		}
		_, source.SecretFault = db.resolve(source.Secrets)
		args := sourceArgs(source, secrets)
		args["id"] = source.ID
		source.SecretInfo, args["secret_info"] = storeInfo(source.Secrets, source.SecretInfo, secrets, now)
		if err := tx.QueryRow(ctx, updateSource, args).Scan(&source.UpdatedAt); err != nil {
			return err
		}
		return audit(ctx, tx, by, change{
			action: action, object: name, source: source.ID, before: was, after: auditSource(source, known),
		})
	})
	if refused != nil {
		return nil, refused
	}
	if err != nil {
		return nil, fmt.Errorf("change source %q: %w", name, mapError(err))
	}
	return source, nil
}

// databaseTime is when the transaction began.
func databaseTime(ctx context.Context, tx pgx.Tx) (now time.Time, err error) {
	err = tx.QueryRow(ctx, `SELECT now()`).Scan(&now)
	return now, err
}

const deleteSource = `
UPDATE source SET deleted_at = now(), enabled = false, secrets = '{}', secret_info = '[]', updated_at = now()
WHERE id = @id`

// DeleteSource marks a source as deleted and forgets its secrets. Its name is free again.
func (db *DB) DeleteSource(ctx context.Context, by inbox.Actor, name string) error {
	err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, readSource+" FOR UPDATE", pgx.StrictNamedArgs{"name": name})
		source, err := pgx.CollectExactlyOneRow(rows, db.scanSource)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, deleteSource, pgx.StrictNamedArgs{"id": source.ID}); err != nil {
			return err
		}
		return audit(ctx, tx, by, change{
			action: inbox.SourceDelete, object: name, source: source.ID, before: auditSource(source, source.SecretInfo),
		})
	})
	if err != nil {
		return fmt.Errorf("delete source %q: %w", name, mapError(err))
	}
	return nil
}

func sourceArgs(s *inbox.Source, secrets []string) pgx.StrictNamedArgs {
	settings := s.Settings
	if len(settings) == 0 {
		settings = json.RawMessage("{}")
	}
	return pgx.StrictNamedArgs{
		"provider": s.Provider, "variant": s.Variant, "settings": settings, "secrets": secrets,
		"body_limit": s.BodyLimit, "enabled": s.Enabled,
	}
}

// named finds the row of a name for a filter: the live one, else the one that was deleted last.
const (
	sourceNamed  = `SELECT id FROM source WHERE name = @name ORDER BY deleted_at DESC NULLS FIRST LIMIT 1`
	handlerNamed = `SELECT id FROM handler WHERE name = @name ORDER BY deleted_at DESC NULLS FIRST LIMIT 1`
)

// SourceNamed returns the number of the source of that name, or of the one with it that was deleted last.
func (db *DB) SourceNamed(ctx context.Context, name string) (id int64, err error) {
	if err := db.pool.QueryRow(ctx, sourceNamed, pgx.StrictNamedArgs{"name": name}).Scan(&id); err != nil {
		return 0, fmt.Errorf("find source %q: %w", name, mapError(err))
	}
	return id, nil
}

// HandlerNamed does the same for a handler.
func (db *DB) HandlerNamed(ctx context.Context, name string) (id int64, err error) {
	if err := db.pool.QueryRow(ctx, handlerNamed, pgx.StrictNamedArgs{"name": name}).Scan(&id); err != nil {
		return 0, fmt.Errorf("find handler %q: %w", name, mapError(err))
	}
	return id, nil
}
