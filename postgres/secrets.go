package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/inboxd/inboxd/inbox"
	"github.com/inboxd/inboxd/internal/seal"
)

// Secrets is what secrets are stored and used with.
type Secrets struct {
	Keys *seal.Keyring // without one no secret is stored
	// Lookup returns what a reference (env:NAME, file:/path) stands for. Its errors name the reference only.
	Lookup func(reference string) (inbox.Secret, error)
	// LookupCredential is Lookup for what is shown to handlers: whoever may register a handler could read what it
	// returns, so it must not be any file.
	LookupCredential func(reference string) (inbox.Secret, error)
}

// Option changes how a database is opened.
type Option func(*DB)

// WithSecrets gives the database what it seals and opens secrets with.
func WithSecrets(s Secrets) Option { return func(db *DB) { db.secrets = s } }

// What a sealed secret is bound to, before its row's name: a copy of it in another row or table opens
// nothing. The name, and not the number, is known before the row is written, never changes, and survives
// dump and restore.
const (
	sourceSecret  = "source secret/"
	handlerSecret = "handler secret/"
)

// storedInfo is an element of the column secret_info.
type storedInfo struct {
	ID       string     `json:"id"`
	AddedAt  time.Time  `json:"added_at"`
	NotAfter *time.Time `json:"not_after,omitempty"`
}

// storedSecrets are the columns of a row that hold its secrets, and the database's time.
type storedSecrets struct {
	texts []string
	info  []storedInfo
	now   time.Time
}

// openSecrets returns the secrets of a row that have not ended. References stay, and so does what can't be
// opened: a change of another field must not lose it. resolve refuses the latter.
func (db *DB) openSecrets(kind, name string, stored storedSecrets, updated time.Time) ([]inbox.Secret, []inbox.SecretInfo) {
	secrets := make([]inbox.Secret, 0, len(stored.texts))
	info := make([]inbox.SecretInfo, 0, len(stored.texts))
	for i, text := range stored.texts {
		known := inbox.SecretInfo{ID: fmt.Sprintf("unnamed-%d", i+1), Kind: kindOf(text), AddedAt: updated}
		if len(stored.info) == len(stored.texts) {
			known.ID, known.AddedAt = stored.info[i].ID, stored.info[i].AddedAt
			if end := stored.info[i].NotAfter; end != nil {
				known.NotAfter = *end
			}
		}
		if seal.Sealed(text) {
			if opened, err := db.secrets.Keys.Open(text, kind+name); err == nil {
				text = opened
			}
		}
		known.Secret = inbox.Secret(text)
		secrets, info = append(secrets, known.Secret), append(info, known)
	}
	return inForce(secrets, info, stored.now)
}

// inForce leaves out the secrets that have ended.
func inForce(secrets []inbox.Secret, info []inbox.SecretInfo, now time.Time) ([]inbox.Secret, []inbox.SecretInfo) {
	ended := func(i inbox.SecretInfo) bool { return !i.NotAfter.IsZero() && !i.NotAfter.After(now) }
	if !slices.ContainsFunc(info, ended) {
		return secrets, info
	}
	info = slices.DeleteFunc(slices.Clone(info), ended)
	secrets = make([]inbox.Secret, len(info))
	for i := range info {
		secrets[i] = info[i].Secret
	}
	return secrets, info
}

func kindOf(text string) inbox.SecretKind {
	switch {
	case seal.Sealed(text):
		return inbox.SecretSealed
	case strings.HasPrefix(text, "env:"):
		return inbox.SecretEnv
	case strings.HasPrefix(text, "file:"):
		return inbox.SecretFile
	}
	return inbox.SecretPlain
}

// storeInfo completes the info of secrets that are about to be stored as texts, and returns what is stored of it.
func storeInfo(secrets []inbox.Secret, known []inbox.SecretInfo, texts []string, now time.Time) ([]inbox.SecretInfo, []storedInfo) {
	info := inbox.DescribeSecrets(secrets, known, now)
	stored := make([]storedInfo, len(info))
	for i := range info {
		info[i].Kind = kindOf(texts[i])
		stored[i] = storedInfo{ID: info[i].ID, AddedAt: info[i].AddedAt}
		if !info[i].NotAfter.IsZero() {
			stored[i].NotAfter = &info[i].NotAfter
		}
	}
	return info, stored
}

// sealSecrets returns what is stored of a row's secrets. before are those that it had: they may stay as they
// are where nothing can be sealed.
func (db *DB) sealSecrets(kind, name string, secrets, before []inbox.Secret) ([]string, error) {
	texts := make([]string, len(secrets))
	for i, secret := range secrets {
		text := secret.Reveal()
		kept := slices.Contains(before, secret)
		switch {
		case secret.Reference():
		case seal.Sealed(text):
			if !kept {
				return nil, fmt.Errorf("a new secret begins with %s: %w", seal.Prefix, inbox.ErrRefused)
			}
		case db.secrets.Keys.Empty():
			if !kept {
				return nil, inbox.ErrNoSealingKey
			}
		default:
			var err error
			if text, err = db.secrets.Keys.Seal(text, kind+name); err != nil {
				return nil, err
			}
		}
		texts[i] = text
	}
	return texts, nil
}

// resolve returns the secrets with references looked up, or no secret and why one of them can't be used.
func (db *DB) resolve(secrets []inbox.Secret) (resolved []inbox.Secret, fault string) {
	resolved = slices.Clone(secrets)
	for i, secret := range secrets {
		switch {
		case seal.Sealed(secret.Reveal()):
			return nil, db.sealFault(secret.Reveal())
		case secret.Reference():
			if db.secrets.Lookup == nil {
				return nil, "references to secrets are not looked up here"
			}
			var err error
			if resolved[i], err = db.secrets.Lookup(secret.Reveal()); err != nil {
				return nil, err.Error()
			}
		}
	}
	return resolved, ""
}

// sealFault says why a sealed text wasn't opened. In no context does it open, so only a missing key is told apart.
func (db *DB) sealFault(sealed string) string {
	_, err := db.secrets.Keys.Open(sealed, "")
	if errors.Is(err, seal.ErrUnknownKey) {
		return "a secret is " + err.Error() + "; --secret-keys must have it"
	}
	return "a secret can't be opened: " + seal.ErrBroken.Error()
}

// ResolveSource returns a copy of the source with its references looked up, for whoever compiles it.
func (db *DB) ResolveSource(s *inbox.Source) *inbox.Source {
	resolved := *s
	resolved.Secrets, resolved.SecretFault = db.resolve(s.Secrets)
	return &resolved
}

// ResolveHandler is to a handler what ResolveSource is to a source.
func (db *DB) ResolveHandler(h *inbox.Handler) *inbox.Handler {
	resolved := *h
	resolved.Secrets, resolved.SecretFault = db.resolve(h.Secrets)
	if resolved.Credentials = nil; resolved.SecretFault == "" {
		resolved.Credentials, resolved.SecretFault = db.resolveCredentials(h.Credentials)
	}
	return &resolved
}

// resolveSnapshot returns the snapshot as of now: with all references looked up, without secrets that have ended.
func (db *DB) resolveSnapshot(stored *inbox.Snapshot, now time.Time) *inbox.Snapshot {
	resolved := &inbox.Snapshot{
		Version:  stored.Version,
		Sources:  make([]*inbox.Source, len(stored.Sources)),
		Handlers: make([]*inbox.Handler, len(stored.Handlers)),
	}
	for i, source := range stored.Sources {
		source := *source
		source.Secrets, source.SecretInfo = inForce(source.Secrets, source.SecretInfo, now)
		resolved.Sources[i] = db.ResolveSource(&source)
	}
	for i, handler := range stored.Handlers {
		handler := *handler
		handler.Secrets, handler.SecretInfo = inForce(handler.Secrets, handler.SecretInfo, now)
		resolved.Handlers[i] = db.ResolveHandler(&handler)
	}
	return resolved
}

// sameSecrets compares two snapshots of one version.
func sameSecrets(a, b *inbox.Snapshot) bool {
	return slices.EqualFunc(a.Sources, b.Sources, func(a, b *inbox.Source) bool {
		return a.SecretFault == b.SecretFault && slices.Equal(a.Secrets, b.Secrets)
	}) && slices.EqualFunc(a.Handlers, b.Handlers, func(a, b *inbox.Handler) bool {
		return a.SecretFault == b.SecretFault && slices.Equal(a.Secrets, b.Secrets) && a.Credentials.Equal(b.Credentials)
	})
}

const countPlain = `
SELECT count(*) FROM (
    SELECT unnest(secrets) AS secret FROM source WHERE deleted_at IS NULL
    UNION ALL SELECT unnest(secrets) FROM handler WHERE deleted_at IS NULL
) AS stored
WHERE secret !~ '^(sealed|env|file):'`

// PlainSecrets counts the secrets that an earlier release stored as they were given.
func (db *DB) PlainSecrets(ctx context.Context) (n int, err error) {
	if err := db.pool.QueryRow(ctx, countPlain).Scan(&n); err != nil {
		return 0, fmt.Errorf("count plain secrets: %w", mapError(err))
	}
	return n, nil
}

const (
	listSourceSecrets  = `SELECT id FROM source WHERE deleted_at IS NULL ORDER BY id`
	lockSourceSecrets  = `SELECT name, secrets FROM source WHERE id = @id AND deleted_at IS NULL FOR UPDATE`
	writeSourceSecrets = `UPDATE source SET secrets = @secrets WHERE id = @id`

	listHandlerSecrets  = `SELECT id FROM handler WHERE deleted_at IS NULL ORDER BY id`
	lockHandlerSecrets  = `SELECT name, secrets FROM handler WHERE id = @id AND deleted_at IS NULL FOR UPDATE`
	writeHandlerSecrets = `UPDATE handler SET secrets = @secrets WHERE id = @id`

	listCredentials  = `SELECT id FROM handler WHERE deleted_at IS NULL AND credentials IS NOT NULL ORDER BY id`
	lockCredentials  = `SELECT name, ARRAY[credentials] FROM handler WHERE id = @id AND deleted_at IS NULL AND credentials IS NOT NULL FOR UPDATE`
	writeCredentials = `UPDATE handler SET credentials = (@secrets::text[])[1] WHERE id = @id`

	// Earlier releases left a deleted handler its secrets.
	forgetDeleted = `
UPDATE handler SET secrets = '{deleted}', secret_info = '[]', credentials = NULL
WHERE deleted_at IS NOT NULL AND (secrets <> '{deleted}' OR credentials IS NOT NULL)`
)

// Rekey seals every secret that is not yet sealed under the first key, those stored plain included, and returns
// how many there were. Each row is a transaction of its own, under the row's lock; doing it again changes
// nothing. A secret that can't be opened ends it with an error that names the row.
func (db *DB) Rekey(ctx context.Context, by inbox.Actor) (resealed int, err error) {
	if db.secrets.Keys.Empty() {
		return 0, inbox.ErrNoSealingKey
	}
	if _, err := db.pool.Exec(ctx, forgetDeleted); err != nil {
		return 0, fmt.Errorf("forget secrets of deleted handlers: %w", mapError(err))
	}
	for _, table := range []struct{ kind, list, lock, write string }{
		{sourceSecret, listSourceSecrets, lockSourceSecrets, writeSourceSecrets},
		{handlerSecret, listHandlerSecrets, lockHandlerSecrets, writeHandlerSecrets},
		{handlerCredentials, listCredentials, lockCredentials, writeCredentials},
	} {
		rows, _ := db.pool.Query(ctx, table.list)
		ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil {
			return resealed, fmt.Errorf("list secrets: %w", mapError(err))
		}
		for _, id := range ids {
			n, err := db.rekeyRow(ctx, by, table.kind, table.lock, table.write, id)
			if err != nil {
				return resealed, err
			}
			resealed += n
		}
	}
	return resealed, nil
}

func (db *DB) rekeyRow(ctx context.Context, by inbox.Actor, kind, lock, write string, id int64) (resealed int, err error) {
	var broken error
	err = pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		var (
			name  string
			texts []string
		)
		err := tx.QueryRow(ctx, lock, pgx.StrictNamedArgs{"id": id}).Scan(&name, &texts)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil // deleted meanwhile
		}
		if err != nil {
			return err
		}
		for i, text := range texts {
			if inbox.Secret(text).Reference() || db.secrets.Keys.Current(text) {
				continue
			}
			if seal.Sealed(text) {
				if text, err = db.secrets.Keys.Open(text, kind+name); err != nil {
					broken = fmt.Errorf("%s%s: %w", kind, name, err)
					return broken
				}
			}
			if texts[i], err = db.secrets.Keys.Seal(text, kind+name); err != nil {
				broken = err
				return broken
			}
			resealed++
		}
		if resealed == 0 {
			return nil
		}
		if _, err = tx.Exec(ctx, write, pgx.StrictNamedArgs{"id": id, "secrets": texts}); err != nil {
			return err
		}
		return audit(ctx, tx, by, change{action: inbox.SecretsRekey, object: kind + name, after: map[string]int{"sealed": resealed}})
	})
	if broken != nil {
		return 0, broken
	}
	if err != nil {
		return 0, fmt.Errorf("seal a row's secrets again: %w", mapError(err))
	}
	return resealed, nil
}
