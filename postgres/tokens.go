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

const insertToken = `INSERT INTO token (name, hash) VALUES (@name, @hash)`

// CreateToken makes an operators' token and returns its text, which is stored nowhere: the table has its
// SHA-256. A name is used once, even if its token is revoked.
func (db *DB) CreateToken(ctx context.Context, by inbox.Actor, name string) (string, error) {
	var random [32]byte
	rand.Read(random[:]) // never fails
	token := tokenPrefix + base64.RawURLEncoding.EncodeToString(random[:])
	hash := sha256.Sum256([]byte(token))
	err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, insertToken, pgx.StrictNamedArgs{"name": name, "hash": hash[:]}); err != nil {
			return err
		}
		return audit(ctx, tx, by, change{action: inbox.TokenCreate, object: name})
	})
	if err != nil {
		return "", fmt.Errorf("create token %q: %w", name, mapError(err))
	}
	return token, nil
}

const readToken = `SELECT id, name, created_at, revoked_at FROM token WHERE hash = @hash AND revoked_at IS NULL`

// TokenByHash returns the valid token whose text has this SHA-256, or ErrNotFound.
func (db *DB) TokenByHash(ctx context.Context, hash [sha256.Size]byte) (*inbox.OperatorToken, error) {
	rows, _ := db.pool.Query(ctx, readToken, pgx.StrictNamedArgs{"hash": hash[:]})
	token, err := pgx.CollectExactlyOneRow(rows, scanToken)
	if err != nil {
		return nil, fmt.Errorf("look a token up: %w", mapError(err))
	}
	return token, nil
}

const readTokens = `SELECT id, name, created_at, revoked_at FROM token ORDER BY id`

// Tokens returns all tokens, the revoked ones as well, oldest first.
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
		token   inbox.OperatorToken
		revoked *time.Time
	)
	err := row.Scan(&token.ID, &token.Name, &token.CreatedAt, &revoked)
	if revoked != nil {
		token.RevokedAt = *revoked
	}
	return &token, err
}
