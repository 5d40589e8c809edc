package postgres

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/inboxd/inboxd/inbox"
)

// tokenPrefix lets people and secret scanners tell what they have found.
const tokenPrefix = "inboxd_"

const insertToken = `
INSERT INTO token (name, hash, role, expires_at, sources, handlers)
VALUES (@name, @hash, @role, @expires_at, @sources, @handlers)
RETURNING id, created_at`

// CreateToken makes an operators' token, fills in its number and time, and returns its text, which is stored
// nowhere: the table has its SHA-256. A name is used once, even if its token is revoked.
func (db *DB) CreateToken(ctx context.Context, by inbox.Actor, t *inbox.OperatorToken) (string, error) {
	var random [32]byte
	rand.Read(random[:]) // never fails
	text := tokenPrefix + base64.RawURLEncoding.EncodeToString(random[:])
	hash := sha256.Sum256([]byte(text))
	args := pgx.StrictNamedArgs{
		"name": t.Name, "hash": hash[:], "role": string(t.Role), "expires_at": orNullTime(t.ExpiresAt),
		"sources": t.Scope.Sources, "handlers": t.Scope.Handlers,
	}
	err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, insertToken, args).Scan(&t.ID, &t.CreatedAt); err != nil {
			return err
		}
		return audit(ctx, tx, by, change{action: inbox.TokenCreate, object: t.Name, after: auditToken(t)})
	})
	if err != nil {
		return "", fmt.Errorf("create token %q: %w", t.Name, mapError(err))
	}
	return text, nil
}

// auditedToken is what the audit shows of a token.
type auditedToken struct {
	Role      inbox.Role `json:"role"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
	Sources   []string   `json:"sources"`
	Handlers  []string   `json:"handlers"`
}

func auditToken(t *inbox.OperatorToken) *auditedToken {
	return &auditedToken{Role: t.Role, ExpiresAt: orNullTime(t.ExpiresAt), Sources: t.Scope.Sources, Handlers: t.Scope.Handlers}
}

func orNullTime(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

const tokenColumns = `SELECT id, name, role, sources, handlers, created_at, expires_at, revoked_at FROM token `

const readToken = tokenColumns + `
WHERE hash = @hash AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())`

// TokenByHash returns the token whose text has this SHA-256, or ErrNotFound if there is none, or it is
// revoked or has expired.
func (db *DB) TokenByHash(ctx context.Context, hash [sha256.Size]byte) (*inbox.OperatorToken, error) {
	rows, _ := db.pool.Query(ctx, readToken, pgx.StrictNamedArgs{"hash": hash[:]})
	token, err := pgx.CollectExactlyOneRow(rows, scanToken)
	if err != nil {
		return nil, fmt.Errorf("look a token up: %w", mapError(err))
	}
	return token, nil
}

const (
	sourceNames  = `SELECT id, name FROM source ORDER BY id`
	handlerNames = `SELECT id, name FROM handler ORDER BY id`
)

// Reach returns what a scope comes to now: deleted sources and handlers count by the names that they had. It is nil
// for a scope that leaves nothing out.
func (db *DB) Reach(ctx context.Context, scope inbox.Scope) (*inbox.Reach, error) {
	if scope.Everything() {
		return nil, nil
	}
	reach := &inbox.Reach{}
	for _, part := range []struct {
		all       bool
		statement string
		in        func(string) bool
		ids       *[]int64
	}{
		{scope.AllSources(), sourceNames, scope.Source, &reach.Sources},
		{scope.AllHandlers(), handlerNames, scope.Handler, &reach.Handlers},
	} {
		if part.all {
			continue
		}
		*part.ids = []int64{}
		var (
			id   int64
			name string
		)
		rows, _ := db.pool.Query(ctx, part.statement)
		_, err := pgx.ForEachRow(rows, []any{&id, &name}, func() error {
			if part.in(name) {
				*part.ids = append(*part.ids, id)
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("look up what a token is for: %w", mapError(err))
		}
	}
	return reach, nil
}

// SourceOf returns the number of a message's source, or ErrNotFound.
func (db *DB) SourceOf(ctx context.Context, message int64) (id int64, err error) {
	err = db.pool.QueryRow(ctx, `SELECT source_id FROM inbox_message WHERE id = @id`, planned, pgx.StrictNamedArgs{"id": message}).Scan(&id)
	if err != nil {
		return 0, fmt.Errorf("find the source of message %d: %w", message, mapError(err))
	}
	return id, nil
}

const readTokens = tokenColumns + `ORDER BY id`

// Tokens returns all tokens, those that are revoked or have expired as well, oldest first.
func (db *DB) Tokens(ctx context.Context) ([]*inbox.OperatorToken, error) {
	rows, _ := db.pool.Query(ctx, readTokens)
	tokens, err := pgx.CollectRows(rows, scanToken)
	if err != nil {
		return nil, fmt.Errorf("read tokens: %w", mapError(err))
	}
	return tokens, nil
}

const revokeToken = `UPDATE token SET revoked_at = coalesce(revoked_at, now()) WHERE name = @name`

// RevokeToken ends a token's validity at once; ErrNotFound if there is none of that name.
func (db *DB) RevokeToken(ctx context.Context, by inbox.Actor, name string) error {
	err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, revokeToken, pgx.StrictNamedArgs{"name": name})
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return pgx.ErrNoRows
		}
		return audit(ctx, tx, by, change{action: inbox.TokenRevoke, object: name})
	})
	if err != nil {
		return fmt.Errorf("revoke token %q: %w", name, mapError(err))
	}
	return nil
}

func scanToken(row pgx.CollectableRow) (*inbox.OperatorToken, error) {
	var (
		t                inbox.OperatorToken
		expires, revoked *time.Time
	)
	err := row.Scan(&t.ID, &t.Name, &t.Role, &t.Scope.Sources, &t.Scope.Handlers, &t.CreatedAt, &expires, &revoked)
	t.ExpiresAt, t.RevokedAt = orZero(expires), orZero(revoked)
	return &t, err
}
