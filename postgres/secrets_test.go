package postgres_test

import (
	"errors"
	"strings"
	"testing"

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
