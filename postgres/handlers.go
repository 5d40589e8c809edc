package postgres

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/inboxd/inboxd/inbox"
)

// Handlers returns all handlers that are not deleted, by name.
func (db *DB) Handlers(ctx context.Context) ([]*inbox.Handler, error) {
	rows, _ := db.pool.Query(ctx, readHandlers)
	handlers, err := pgx.CollectRows(rows, db.scanHandler)
	if err != nil {
		return nil, fmt.Errorf("read handlers: %w", mapError(err))
	}
	return handlers, nil
}

const readHandler = `
SELECT id, name, url, sources, message_types, secrets, secret_info, concurrency, timeout, max_retry_count, backoff_base,
       backoff_cap, permanent_statuses, paused, credentials, created_at, updated_at, now()
FROM handler WHERE name = @name AND deleted_at IS NULL`

// Handler returns the handler of that name, or ErrNotFound.
func (db *DB) Handler(ctx context.Context, name string) (*inbox.Handler, error) {
	rows, _ := db.pool.Query(ctx, readHandler, pgx.StrictNamedArgs{"name": name})
	handler, err := pgx.CollectExactlyOneRow(rows, db.scanHandler)
	if err != nil {
		return nil, fmt.Errorf("read handler %q: %w", name, mapError(err))
	}
	return handler, nil
}

const insertHandler = `
INSERT INTO handler (name, url, sources, message_types, secrets, secret_info, concurrency, timeout, max_retry_count,
                     backoff_base, backoff_cap, permanent_statuses, paused, credentials)
VALUES (@name, @url, @sources, @message_types, @secrets, @secret_info, @concurrency, @timeout, @max_retry_count,
        @backoff_base, @backoff_cap, @permanent_statuses, @paused, @credentials)
RETURNING id, created_at, updated_at`

// CreateHandler stores a new handler and fills in its number and times. It fails with ErrNameTaken if
// another has its name.
func (db *DB) CreateHandler(ctx context.Context, by inbox.Actor, h *inbox.Handler) error {
	secrets, err := db.sealSecrets(handlerSecret, h.Name, h.Secrets, nil)
	if err != nil {
		return fmt.Errorf("create handler %q: %w", h.Name, err)
	}
	credentials, err := db.sealCredentials(h.Name, h.Credentials, nil)
	if err != nil {
		return fmt.Errorf("create handler %q: %w", h.Name, err)
	}
	err = pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		now, err := databaseTime(ctx, tx)
		if err != nil {
			return err
		}
		args := handlerArgs(h, secrets)
		args["name"], args["credentials"] = h.Name, credentials
		h.SecretInfo, args["secret_info"] = storeInfo(h.Secrets, nil, secrets, now)
		if err := tx.QueryRow(ctx, insertHandler, args).Scan(&h.ID, &h.CreatedAt, &h.UpdatedAt); err != nil {
			return err
		}
		return audit(ctx, tx, by, change{action: inbox.HandlerCreate, object: h.Name, handler: h.ID, after: auditHandler(h, nil, nil)})
	})
	if err != nil {
		return fmt.Errorf("create handler %q: %w", h.Name, mapError(err))
	}
	return nil
}

const updateHandler = `
UPDATE handler
SET url = @url, sources = @sources, message_types = @message_types, secrets = @secrets, secret_info = @secret_info,
    concurrency = @concurrency, timeout = @timeout, max_retry_count = @max_retry_count,
    backoff_base = @backoff_base, backoff_cap = @backoff_cap, permanent_statuses = @permanent_statuses,
    paused = @paused, credentials = @credentials, updated_at = now()
WHERE id = @id
RETURNING updated_at`

// ChangeHandler is to a handler what ChangeSource is to a source.
func (db *DB) ChangeHandler(ctx context.Context, by inbox.Actor, name string, edit func(*inbox.Handler) error) (*inbox.Handler, error) {
	return db.changeHandler(ctx, by, inbox.HandlerChange, name, func(h *inbox.Handler, _ time.Time) error { return edit(h) })
}

// ChangeHandlerSecrets is to a handler what ChangeSourceSecrets is to a source.
func (db *DB) ChangeHandlerSecrets(
	ctx context.Context, by inbox.Actor, action inbox.Action, name string, edit func(h *inbox.Handler, now time.Time) error,
) (*inbox.Handler, error) {
	return db.changeHandler(ctx, by, action, name, edit)
}

func (db *DB) changeHandler(
	ctx context.Context, by inbox.Actor, action inbox.Action, name string, edit func(*inbox.Handler, time.Time) error,
) (*inbox.Handler, error) {
	var (
		handler *inbox.Handler
		refused error
	)
	err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, readHandler+" FOR UPDATE", pgx.StrictNamedArgs{"name": name})
		var err error
		if handler, err = pgx.CollectExactlyOneRow(rows, db.scanHandler); err != nil {
			return err
		}
		now, err := databaseTime(ctx, tx)
		if err != nil {
			return err
		}
		before := slices.Clone(handler.Secrets)
		was := auditHandler(handler, handler.SecretInfo, handler.Credentials)
		known, had := handler.SecretInfo, handler.Credentials
		if refused = edit(handler, now); refused != nil {
			return refused
		}
		var secrets []string
		if secrets, refused = db.sealSecrets(handlerSecret, name, handler.Secrets, before); refused != nil {
			return refused
		}
		var credentials *string
		if credentials, refused = db.sealCredentials(name, handler.Credentials, had); refused != nil {
			return refused
		}
		handler.SecretFault = db.handlerFault(handler)
		args := handlerArgs(handler, secrets)
		args["id"], args["credentials"] = handler.ID, credentials
		handler.SecretInfo, args["secret_info"] = storeInfo(handler.Secrets, handler.SecretInfo, secrets, now)
		if err := tx.QueryRow(ctx, updateHandler, args).Scan(&handler.UpdatedAt); err != nil {
			return err
		}
		return audit(ctx, tx, by, change{
			action: action, object: name, handler: handler.ID, before: was, after: auditHandler(handler, known, had),
		})
	})
	if refused != nil {
		return nil, refused
	}
	if err != nil {
		return nil, fmt.Errorf("change handler %q: %w", name, mapError(err))
	}
	return handler, nil
}

const deleteHandler = `
UPDATE handler SET deleted_at = now(), secrets = '{deleted}', secret_info = '[]', credentials = NULL, updated_at = now()
WHERE id = @id`

// DeleteHandler marks a handler as deleted; its name is free again. The leader ends its deliveries. Its
// secrets are forgotten; a word stands in for them, since the row's CHECK wants one.
func (db *DB) DeleteHandler(ctx context.Context, by inbox.Actor, name string) error {
	err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, readHandler+" FOR UPDATE", pgx.StrictNamedArgs{"name": name})
		handler, err := pgx.CollectExactlyOneRow(rows, db.scanHandler)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, deleteHandler, pgx.StrictNamedArgs{"id": handler.ID}); err != nil {
			return err
		}
		return audit(ctx, tx, by, change{
			action: inbox.HandlerDelete, object: name, handler: handler.ID, before: auditHandler(handler, handler.SecretInfo, handler.Credentials),
		})
	})
	if err != nil {
		return fmt.Errorf("delete handler %q: %w", name, mapError(err))
	}
	return nil
}

func handlerArgs(h *inbox.Handler, secrets []string) pgx.StrictNamedArgs {
	permanent := h.PermanentStatuses
	if permanent == nil {
		permanent = []int{}
	}
	return pgx.StrictNamedArgs{
		"url": h.URL, "sources": h.Sources, "message_types": h.MessageTypes, "secrets": secrets,
		"concurrency": h.Concurrency, "timeout": h.Timeout, "max_retry_count": h.MaxRetryCount,
		"backoff_base": h.Backoff.Base, "backoff_cap": h.Backoff.Cap, "permanent_statuses": permanent,
		"paused": h.Paused,
	}
}
