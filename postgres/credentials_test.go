package postgres_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/inboxd/inboxd/inbox"
	"github.com/inboxd/inboxd/internal/seal"
	"github.com/inboxd/inboxd/postgres"
)

// everyCredential has a secret of each kind, with the word planted in it.
func everyCredential() *inbox.Credentials {
	return &inbox.Credentials{
		Headers: []inbox.CredentialHeader{{Name: "X-Key", Value: "planted-header"}},
		Bearer:  "planted-bearer",
		Basic:   &inbox.BasicCredential{Username: "me", Password: "planted-password"},
		OAuth2: &inbox.OAuth2Credential{
			TokenURL: "https://auth.example", ClientID: "inboxd", ClientSecret: "planted-client", Scopes: []string{"a", "b"},
			Params: map[string]inbox.Secret{"audience": "planted-param"}, InBody: true, CA: "planted-ca",
		},
		TLS: &inbox.TLSCredential{Certificate: "planted-cert", Key: "planted-key", CA: "planted-ca"},
	}
}

func TestCredentialsAreSealed(t *testing.T) {
	t.Parallel()
	v := newVault(t)
	key := entries(t, "one", "two")
	db := v.open(t, ring(t, key[0]))
	h := newHandler("books", "whsec_x")
	h.Credentials = everyCredential()
	if err := db.CreateHandler(t.Context(), operator, h); err != nil {
		t.Fatal(err)
	}
	if err := db.CreateHandler(t.Context(), operator, newHandler("plain", "whsec_x")); err != nil {
		t.Fatal(err)
	}
	read := func(db *postgres.DB) *inbox.Handler {
		t.Helper()
		h, err := db.Handler(t.Context(), "books")
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	if h := read(db); !h.Credentials.Equal(everyCredential()) || h.SecretFault != "" {
		t.Errorf("read %v, fault %q", h.Credentials.Kinds(), h.SecretFault)
	}
	if h, err := db.Handler(t.Context(), "plain"); err != nil || h.Credentials != nil {
		t.Errorf("a handler without credentials has %v, %v", h.Credentials, err)
	}
	clean := func() {
		t.Helper()
		var rows string
		err := v.pool.QueryRow(t.Context(), `SELECT coalesce(string_agg(h::text, ' '), '') || (SELECT string_agg(a::text, ' ') FROM audit AS a) FROM handler AS h`).Scan(&rows)
		if err != nil || strings.Contains(rows, "planted") {
			t.Errorf("the rows hold a secret: %v %s", err, rows)
		}
	}
	clean()

	both := v.open(t, ring(t, key[1], key[0]))
	if n, err := both.Rekey(t.Context(), operator); err != nil || n != 3 {
		t.Errorf("Rekey = %d, %v, want two secrets and the credentials", n, err)
	}
	two := v.open(t, ring(t, key[1]))
	if h := read(two); !h.Credentials.Equal(everyCredential()) {
		t.Errorf("after Rekey %v", h.Credentials.Kinds())
	}

	// Without the key they can't be used, and a change of something else keeps them.
	one := v.open(t, ring(t, key[0]))
	if h := read(one); h.Credentials.Sealed == "" || !strings.Contains(h.SecretFault, "not in the ring: two") {
		t.Errorf("without the key %v, fault %q", h.Credentials.Kinds(), h.SecretFault)
	}
	snapshots := one.Snapshots()
	if err := snapshots.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if h := snapshots.Current().Handlers[0]; h.Credentials != nil || h.SecretFault == "" {
		t.Errorf("without the key the snapshot has %v, fault %q", h.Credentials.Kinds(), h.SecretFault)
	}
	if _, err := one.ChangeHandler(t.Context(), operator, "books", func(h *inbox.Handler) error { h.Secrets = []inbox.Secret{"env:X"}; return nil }); err != nil {
		t.Errorf("another field can't be changed: %v", err)
	}
	if h := read(two); !h.Credentials.Equal(everyCredential()) {
		t.Errorf("after a change without the key %v", h.Credentials.Kinds())
	}
	if _, err := one.Rekey(t.Context(), operator); !errors.Is(err, seal.ErrUnknownKey) {
		t.Errorf("Rekey without the key = %v, want %v", err, seal.ErrUnknownKey)
	}

	// Another handler's are of no use.
	if _, err := v.pool.Exec(t.Context(), `UPDATE handler SET credentials = (SELECT credentials FROM handler WHERE name = 'books') WHERE name = 'plain'`); err != nil {
		t.Fatal(err)
	}
	if h, err := two.Handler(t.Context(), "plain"); err != nil || h.Credentials.Sealed == "" || h.SecretFault == "" {
		t.Errorf("another handler's credentials open: %v, %v", h.Credentials.Kinds(), err)
	}
	for _, name := range []string{"books", "plain"} {
		if err := two.DeleteHandler(t.Context(), operator, name); err != nil {
			t.Fatal(err)
		}
	}
	// A build that doesn't know of credentials leaves them when it deletes; Rekey forgets those.
	if _, err := v.pool.Exec(t.Context(), `UPDATE handler SET credentials = 'sealed:v1:lost:' WHERE name = 'books'`); err != nil {
		t.Fatal(err)
	}
	if _, err := two.Rekey(t.Context(), operator); err != nil {
		t.Error(err)
	}
	var left int
	if err := v.pool.QueryRow(t.Context(), `SELECT count(credentials) FROM handler`).Scan(&left); err != nil || left != 0 {
		t.Errorf("%d deleted handlers have credentials, %v", left, err)
	}
	clean()
}

func TestCredentialsMayRefer(t *testing.T) {
	t.Parallel()
	v := newVault(t)
	found := map[string]inbox.Secret{"file:/token": "first"}
	secrets := ring(t, entries(t, "one")...)
	secrets.LookupCredential = func(reference string) (inbox.Secret, error) {
		if secret, ok := found[reference]; ok {
			return secret, nil
		}
		return "", errors.New(reference + " is missing")
	}
	db := v.open(t, secrets)
	h := newHandler("books", "whsec_x")
	h.Credentials = &inbox.Credentials{Bearer: "file:/token"}
	if err := db.CreateHandler(t.Context(), operator, h); err != nil {
		t.Fatal(err)
	}
	snapshots := db.Snapshots()
	look := func() *inbox.Handler {
		t.Helper()
		if err := snapshots.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		return snapshots.Current().Handlers[0]
	}
	if h := look(); h.Credentials.Bearer.Reveal() != "first" {
		t.Errorf("looked up %q", h.Credentials.Bearer.Reveal())
	}
	before := snapshots.Current()
	if look(); snapshots.Current() != before {
		t.Error("nothing has changed, and the snapshot has")
	}
	found["file:/token"] = "second"
	if h := look(); h.Credentials.Bearer.Reveal() != "second" {
		t.Errorf("after the file changed %q", h.Credentials.Bearer.Reveal())
	}
	delete(found, "file:/token")
	if h := look(); h.Credentials != nil || h.SecretFault != "file:/token is missing" {
		t.Errorf("after the file went away the fault is %q", h.SecretFault)
	}
	if h, err := db.Handler(t.Context(), "books"); err != nil || h.Credentials.Bearer.Reveal() != "file:/token" || h.SecretFault == "" {
		t.Errorf("Handler = %v, %v; it must have the reference and the fault", h, err)
	}
}
