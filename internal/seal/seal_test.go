package seal_test

import (
	"encoding/base64"
	"errors"
	"strings"
	"testing"

	"github.com/inboxd/inboxd/internal/seal"
)

func newRing(t *testing.T, entries ...string) *seal.Keyring {
	t.Helper()
	ring, err := seal.Parse(strings.Join(entries, ","))
	if err != nil {
		t.Fatal(err)
	}
	return ring
}

func newEntry(t *testing.T, id string) string {
	t.Helper()
	entry, err := seal.NewKey(id)
	if err != nil {
		t.Fatal(err)
	}
	return entry
}

func TestSealedTextOpensOnlyWhereItWasSealed(t *testing.T) {
	one, two := newEntry(t, "one"), newEntry(t, "two")
	sealed, err := newRing(t, one).Seal("the text", "source secret/shop")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(sealed, "sealed:v1:one:") || strings.Contains(sealed, "the text") {
		t.Fatalf("Seal = %q", sealed)
	}
	changed := []byte(sealed)
	changed[len(changed)-8] ^= 1
	for _, c := range []struct {
		name    string
		ring    *seal.Keyring
		sealed  string
		context string
		want    error
	}{
		{"same ring", newRing(t, one), sealed, "source secret/shop", nil},
		{"as the second key", newRing(t, two, one), sealed, "source secret/shop", nil},
		{"another row", newRing(t, one), sealed, "source secret/other", seal.ErrBroken},
		{"another kind", newRing(t, one), sealed, "handler secret/shop", seal.ErrBroken},
		{"key gone", newRing(t, two), sealed, "source secret/shop", seal.ErrUnknownKey},
		{"no keys", nil, sealed, "source secret/shop", seal.ErrUnknownKey},
		{"another key of the id", newRing(t, newEntry(t, "one")), sealed, "source secret/shop", seal.ErrBroken},
		{"a key id put on it", newRing(t, one, strings.Replace(one, "one:", "two:", 1)), strings.Replace(sealed, ":one:", ":two:", 1), "source secret/shop", seal.ErrBroken},
		{"changed", newRing(t, one), string(changed), "source secret/shop", seal.ErrBroken},
		{"cut", newRing(t, one), "sealed:v1:one:AAAA", "source secret/shop", seal.ErrBroken},
		{"plain", newRing(t, one), "the text", "source secret/shop", seal.ErrBroken},
	} {
		t.Run(c.name, func(t *testing.T) {
			text, err := c.ring.Open(c.sealed, c.context)
			if !errors.Is(err, c.want) {
				t.Fatalf("Open = %v, want %v", err, c.want)
			}
			if err == nil && text != "the text" || err != nil && text != "" {
				t.Errorf("Open = %q", text)
			}
		})
	}
}

func TestParseRefusesWithoutRepeatingTheKey(t *testing.T) {
	short := base64.StdEncoding.EncodeToString([]byte("a short key"))
	entry := newEntry(t, "one")
	for _, text := range []string{short, "one:" + short, "one", ":" + short, "o ne:" + short, entry + "," + entry, entry + ","} {
		_, err := seal.Parse(text)
		if err == nil {
			t.Errorf("Parse(%q) took it", text)
		} else if strings.Contains(err.Error(), short) || strings.Contains(err.Error(), entry) {
			t.Errorf("the error %q repeats the key", err)
		}
	}
	if _, err := (*seal.Keyring)(nil).Seal("text", ""); !errors.Is(err, seal.ErrNoKey) {
		t.Errorf("Seal without a key = %v, want %v", err, seal.ErrNoKey)
	}
}

func TestCurrent(t *testing.T) {
	one, two := newEntry(t, "one"), newEntry(t, "two")
	sealed, err := newRing(t, one).Seal("text", "")
	if err != nil {
		t.Fatal(err)
	}
	if !newRing(t, one, two).Current(sealed) || newRing(t, two, one).Current(sealed) || newRing(t).Current(sealed) {
		t.Error("Current must say whether the first key sealed it")
	}
}
