package postgres_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/inboxd/inboxd/inbox"
	"github.com/inboxd/inboxd/internal/seal"
	"github.com/inboxd/inboxd/postgres"
	"github.com/inboxd/inboxd/postgres/pgtest"
)

// vault is a database that is opened with different keys.
type vault struct {
	url  string
	pool *pgxpool.Pool
}

func newVault(t *testing.T) *vault {
	t.Helper()
	url := pgtest.New(t).URL
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return &vault{url, pool}
}

func (v *vault) open(t *testing.T, secrets postgres.Secrets) *postgres.DB {
	t.Helper()
	db, err := postgres.Open(t.Context(), v.url, 2, postgres.WithSecrets(secrets))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return db
}

func (v *vault) stored(t *testing.T) string {
	t.Helper()
	var text string
	err := v.pool.QueryRow(t.Context(), `SELECT coalesce(string_agg(secrets::text, ' '), '') FROM source`).Scan(&text)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// loaded returns the shop as ingest gets it.
func loaded(t *testing.T, db *postgres.DB) *inbox.Source {
	t.Helper()
	snapshots := db.Snapshots()
	if err := snapshots.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	return snapshots.Current().Source("shop")
}

func entries(t *testing.T, ids ...string) []string {
	t.Helper()
	all := make([]string, len(ids))
	for i, id := range ids {
		var err error
		if all[i], err = seal.NewKey(id); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

func ring(t *testing.T, entries ...string) postgres.Secrets {
	t.Helper()
	keys, err := seal.Parse(strings.Join(entries, ","))
	if err != nil {
		t.Fatal(err)
	}
	return postgres.Secrets{Keys: keys}
}

func TestSecretsAreSealedAndSealedAgain(t *testing.T) {
	t.Parallel()
	v := newVault(t)
	key := entries(t, "one", "two")
	one := v.open(t, ring(t, key[0]))
	if err := one.CreateSource(t.Context(), operator, &inbox.Source{Name: "shop", Provider: "stripe", Secrets: []inbox.Secret{"the first text"}}); err != nil {
		t.Fatal(err)
	}
	if text := v.stored(t); strings.Contains(text, "the first text") || !strings.Contains(text, "sealed:v1:one:") {
		t.Fatalf("stored is %s", text)
	}
	if s := loaded(t, one); len(s.Secrets) != 1 || s.Secrets[0].Reveal() != "the first text" || s.SecretFault != "" {
		t.Errorf("loaded %d secrets, fault %q", len(s.Secrets), s.SecretFault)
	}

	// A secret that an earlier release stored as it was given works, and is sealed with the others.
	if _, err := v.pool.Exec(t.Context(), `INSERT INTO source (name, provider, secrets) VALUES ('old', 'stripe', '{a plain text}')`); err != nil {
		t.Fatal(err)
	}
	both := v.open(t, ring(t, key[1], key[0]))
	if plain, err := both.PlainSecrets(t.Context()); err != nil || plain != 1 {
		t.Errorf("PlainSecrets = %d, %v, want 1", plain, err)
	}
	for _, want := range []int{2, 0} {
		if n, err := both.Rekey(t.Context(), operator); err != nil || n != want {
			t.Errorf("Rekey = %d, %v, want %d", n, err, want)
		}
	}
	if text := v.stored(t); strings.Contains(text, "plain") || strings.Contains(text, ":one:") {
		t.Errorf("stored is %s", text)
	}
	if s := loaded(t, v.open(t, ring(t, key[1]))); s.SecretFault != "" || s.Secrets[0].Reveal() != "the first text" {
		t.Errorf("fault %q", s.SecretFault)
	}
}

func TestSecretThatCantBeOpenedIsNoSecret(t *testing.T) {
	t.Parallel()
	v := newVault(t)
	key := entries(t, "one", "two")
	one := v.open(t, ring(t, key[0]))
	for _, name := range []string{"shop", "other"} {
		if err := one.CreateSource(t.Context(), operator, &inbox.Source{Name: name, Provider: "stripe", Secrets: []inbox.Secret{inbox.Secret(name)}}); err != nil {
			t.Fatal(err)
		}
	}
	two := v.open(t, ring(t, key[1]))
	if s := loaded(t, two); len(s.Secrets) != 0 || !strings.Contains(s.SecretFault, "not in the ring: one") {
		t.Errorf("loaded %d secrets, fault %q", len(s.Secrets), s.SecretFault)
	}
	// A change of something else keeps it.
	changed, err := two.ChangeSource(t.Context(), operator, "shop", func(s *inbox.Source) error { s.Enabled = true; return nil })
	if err != nil || changed.SecretFault == "" {
		t.Fatalf("ChangeSource = %v; the fault must be told", err)
	}
	if s := loaded(t, one); s.SecretFault != "" || s.Secrets[0].Reveal() != "shop" {
		t.Errorf("fault %q after a change by an instance without the key", s.SecretFault)
	}
	if n, err := two.Rekey(t.Context(), operator); n != 0 || !errors.Is(err, seal.ErrUnknownKey) {
		t.Errorf("Rekey = %d, %v, want %v", n, err, seal.ErrUnknownKey)
	}
	// Another row's secret is of no use.
	if _, err := v.pool.Exec(t.Context(), `UPDATE source SET secrets = (SELECT secrets FROM source WHERE name = 'other') WHERE name = 'shop'`); err != nil {
		t.Fatal(err)
	}
	if s := loaded(t, one); len(s.Secrets) != 0 || s.SecretFault == "" {
		t.Errorf("another row's secret is used: fault %q", s.SecretFault)
	}
	// Rotation without an overlap leaves it behind.
	rotated, err := two.ChangeSourceSecrets(t.Context(), operator, inbox.SourceSecretRotate, "shop", func(s *inbox.Source, now time.Time) error {
		s.Secrets, s.SecretInfo = inbox.RotateSecrets(s.Secrets, s.SecretInfo, "fresh", now, 0)
		return nil
	})
	if err != nil || rotated.SecretFault != "" || len(rotated.Secrets) != 1 {
		t.Errorf("ChangeSourceSecrets = %+v, %v", rotated, err)
	}
	if s := loaded(t, two); s.SecretFault != "" || s.Secrets[0].Reveal() != "fresh" {
		t.Errorf("after the rotation the fault is %q", s.SecretFault)
	}
}

func TestWithoutKeyNoSecretIsStored(t *testing.T) {
	t.Parallel()
	v := newVault(t)
	db := v.open(t, postgres.Secrets{})
	err := db.CreateSource(t.Context(), operator, &inbox.Source{Name: "shop", Provider: "stripe", Secrets: []inbox.Secret{"text"}})
	if !errors.Is(err, inbox.ErrNoSealingKey) {
		t.Fatalf("CreateSource = %v, want %v", err, inbox.ErrNoSealingKey)
	}
	if _, err := v.pool.Exec(t.Context(), `INSERT INTO source (name, provider, secrets) VALUES ('shop', 'stripe', '{old}')`); err != nil {
		t.Fatal(err)
	}
	if _, err := db.ChangeSource(t.Context(), operator, "shop", func(s *inbox.Source) error { s.Enabled = false; return nil }); err != nil {
		t.Errorf("another field can't be changed: %v", err)
	}
	_, err = db.ChangeSource(t.Context(), operator, "shop", func(s *inbox.Source) error {
		s.Secrets = append(s.Secrets, "new")
		return nil
	})
	if !errors.Is(err, inbox.ErrNoSealingKey) {
		t.Errorf("ChangeSource = %v, want %v", err, inbox.ErrNoSealingKey)
	}
	if s := loaded(t, db); s.SecretFault != "" || s.Secrets[0].Reveal() != "old" {
		t.Errorf("the old secret is not read: fault %q", s.SecretFault)
	}
}

func TestReferencesAreLookedUpAtEachRefresh(t *testing.T) {
	t.Parallel()
	v := newVault(t)
	found := map[string]inbox.Secret{"file:/a": "first"}
	db := v.open(t, postgres.Secrets{Lookup: func(reference string) (inbox.Secret, error) {
		if secret, ok := found[reference]; ok {
			return secret, nil
		}
		return "", errors.New(reference + " is missing")
	}})
	if err := db.CreateSource(t.Context(), operator, &inbox.Source{Name: "shop", Provider: "stripe", Secrets: []inbox.Secret{"file:/a"}}); err != nil {
		t.Fatal(err)
	}
	if text := v.stored(t); text != "{file:/a}" {
		t.Errorf("stored is %s, want the reference", text)
	}
	snapshots := db.Snapshots()
	look := func() (string, string) {
		t.Helper()
		if err := snapshots.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		s := snapshots.Current().Source("shop")
		if len(s.Secrets) == 0 {
			return "", s.SecretFault
		}
		return s.Secrets[0].Reveal(), s.SecretFault
	}
	if text, fault := look(); text != "first" || fault != "" {
		t.Errorf("looked up %q, fault %q", text, fault)
	}
	before := snapshots.Current()
	if look(); snapshots.Current() != before {
		t.Error("nothing has changed, and the snapshot has")
	}
	found["file:/a"] = "second"
	if text, _ := look(); text != "second" {
		t.Errorf("after the file changed, the secret is %q", text)
	}
	delete(found, "file:/a")
	if text, fault := look(); text != "" || fault != "file:/a is missing" {
		t.Errorf("after the file went away, the secret is %q, fault %q", text, fault)
	}
	if s, err := db.Source(t.Context(), "shop"); err != nil || s.SecretFault == "" || s.Secrets[0].Reveal() != "file:/a" {
		t.Errorf("Source = %+v, %v; it must show the reference and the fault", s, err)
	}
}

// TestSecretEnds rotates secrets and moves the end of the overlap into the past, without a change that the
// snapshot's version would tell.
func TestSecretEnds(t *testing.T) {
	t.Parallel()
	v := newVault(t)
	key := entries(t, "one", "two")
	db := v.open(t, ring(t, key[0]))
	if err := db.CreateSource(t.Context(), operator, &inbox.Source{Name: "shop", Provider: "stripe", Secrets: []inbox.Secret{"old"}}); err != nil {
		t.Fatal(err)
	}
	if err := db.CreateHandler(t.Context(), operator, newHandler("books", "old")); err != nil {
		t.Fatal(err)
	}
	source, err := db.ChangeSourceSecrets(t.Context(), operator, inbox.SourceSecretRotate, "shop", func(s *inbox.Source, now time.Time) error {
		s.Secrets, s.SecretInfo = inbox.RotateSecrets(s.Secrets, s.SecretInfo, "new", now, time.Hour)
		return nil
	})
	if err != nil || len(source.SecretInfo) != 2 || !source.SecretInfo[0].NotAfter.IsZero() ||
		source.SecretInfo[1].NotAfter.Sub(source.SecretInfo[0].AddedAt) != time.Hour || source.SecretInfo[0].ID == source.SecretInfo[1].ID {
		t.Fatalf("ChangeSourceSecrets = %+v, %v, want two secrets, the second for an hour", source.SecretInfo, err)
	}
	_, err = db.ChangeHandlerSecrets(t.Context(), operator, inbox.HandlerSecretRotate, "books", func(h *inbox.Handler, now time.Time) error {
		h.Secrets, h.SecretInfo = inbox.RotateSecrets(h.Secrets, h.SecretInfo, "new", now, time.Hour)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}

	// Another key seals both, and ids and ends stay.
	both := v.open(t, ring(t, key[1], key[0]))
	if n, err := both.Rekey(t.Context(), operator); err != nil || n != 4 {
		t.Fatalf("Rekey = %d, %v, want 4 secrets", n, err)
	}
	db = v.open(t, ring(t, key[1]))
	if again, err := db.Source(t.Context(), "shop"); err != nil || len(again.SecretInfo) != 2 || again.SecretInfo[1].ID != source.SecretInfo[1].ID ||
		again.SecretInfo[1].NotAfter.IsZero() || again.SecretInfo[1].Kind != inbox.SecretSealed {
		t.Fatalf("after Rekey, Source = %+v, %v", again, err)
	}

	snapshots := db.Snapshots()
	look := func() string {
		t.Helper()
		if err := snapshots.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		current := snapshots.Current()
		var texts []string
		for _, secrets := range [][]inbox.Secret{current.Source("shop").Secrets, current.Handlers[0].Secrets} {
			for _, secret := range secrets {
				texts = append(texts, secret.Reveal())
			}
		}
		return strings.Join(texts, " ")
	}
	if got := look(); got != "new old new old" {
		t.Errorf("in the overlap the snapshot has %q", got)
	}
	version := snapshots.Current().Version
	for _, table := range []string{"source", "handler"} {
		// The trigger would make a new version.
		_, err := v.pool.Exec(t.Context(), `ALTER TABLE `+table+` DISABLE TRIGGER bump;
UPDATE `+table+` SET secret_info = jsonb_set(secret_info, '{1,not_after}', to_jsonb(now())); ALTER TABLE `+table+` ENABLE TRIGGER bump`)
		if err != nil {
			t.Fatal(err)
		}
	}
	// What is loaded knows of the hour only; a fresh one sees the end that has passed.
	snapshots = db.Snapshots()
	if got := look(); got != "new new" || snapshots.Current().Version != version {
		t.Errorf("after the overlap the snapshot has %q, version %d of %d", got, snapshots.Current().Version, version)
	}
	if now, err := db.Source(t.Context(), "shop"); err != nil || len(now.Secrets) != 1 || len(now.SecretInfo) != 1 {
		t.Errorf("after the overlap Source = %+v, %v", now, err)
	}
	// The next change forgets it.
	if _, err := db.ChangeSource(t.Context(), operator, "shop", func(s *inbox.Source) error { s.Enabled = true; return nil }); err != nil {
		t.Fatal(err)
	}
	var left int
	if err := v.pool.QueryRow(t.Context(), `SELECT cardinality(secrets) + jsonb_array_length(secret_info) FROM source`).Scan(&left); err != nil || left != 2 {
		t.Errorf("%d elements are left, %v, want one secret and its info", left, err)
	}
}

// TestSecretEndsInMemory: a snapshot that stays current drops a secret when its end comes, by the database's time.
func TestSecretEndsInMemory(t *testing.T) {
	t.Parallel()
	v := newVault(t)
	db := v.open(t, ring(t, entries(t, "one")...))
	if err := db.CreateSource(t.Context(), operator, &inbox.Source{Name: "shop", Provider: "stripe", Secrets: []inbox.Secret{"old"}}); err != nil {
		t.Fatal(err)
	}
	_, err := db.ChangeSourceSecrets(t.Context(), operator, inbox.SourceSecretRotate, "shop", func(s *inbox.Source, now time.Time) error {
		s.Secrets, s.SecretInfo = inbox.RotateSecrets(s.Secrets, s.SecretInfo, "new", now, 500*time.Millisecond)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	snapshots := db.Snapshots()
	for deadline := time.Now().Add(10 * time.Second); ; {
		if err := snapshots.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		if len(snapshots.Current().Source("shop").Secrets) == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the old secret is still there long after its end")
		}
		time.Sleep(20 * time.Millisecond) // between two looks, not instead of one
	}
	if s := snapshots.Current().Source("shop"); s.Secrets[0] != "new" || len(s.SecretInfo) != 1 {
		t.Errorf("the secret that is left is not the new one: %+v", s.SecretInfo)
	}
}

// TestSecretsOfAnEarlierBuild: one that doesn't know ids writes secrets beside them.
func TestSecretsOfAnEarlierBuild(t *testing.T) {
	t.Parallel()
	v := newVault(t)
	db := v.open(t, ring(t, entries(t, "one")...))
	if err := db.CreateSource(t.Context(), operator, &inbox.Source{Name: "shop", Provider: "stripe", Secrets: []inbox.Secret{"a"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := v.pool.Exec(t.Context(), `UPDATE source SET secrets = '{b,c}'`); err != nil {
		t.Fatal(err)
	}
	s, err := db.Source(t.Context(), "shop")
	if err != nil || len(s.SecretInfo) != 2 || s.SecretInfo[0].ID != "unnamed-1" || s.SecretInfo[1].Kind != inbox.SecretPlain || s.SecretInfo[1].AddedAt.IsZero() {
		t.Fatalf("Source = %+v, %v", s, err)
	}
	s, err = db.ChangeSource(t.Context(), operator, "shop", func(s *inbox.Source) error {
		s.Secrets = append(s.Secrets[1:], "b") // the other way round: the ids go with their secrets
		return nil
	})
	if err != nil || s.SecretInfo[0].ID != "unnamed-2" || s.SecretInfo[1].ID != "unnamed-1" || s.SecretInfo[0].Kind != inbox.SecretSealed {
		t.Errorf("ChangeSource = %+v, %v", s, err)
	}
}

func newHandler(name string, secret inbox.Secret) *inbox.Handler {
	return &inbox.Handler{
		Name: name, URL: "http://127.0.0.1:9", Sources: []string{"*"}, MessageTypes: []string{"*"}, Secrets: []inbox.Secret{secret},
		Concurrency: 1, Timeout: time.Second, Backoff: inbox.Backoff{Base: time.Second, Cap: time.Second},
	}
}
