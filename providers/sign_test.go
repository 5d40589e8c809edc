package providers_test

import (
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/inboxd/inboxd/inbox"
	"github.com/inboxd/inboxd/providers"
)

// now is the clock of tests that don't meet a library with a clock of its own.
var now = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

const hmacSettings = `{
	"signature": {"in": "header:X-Signature", "prefix": "sha256="},
	"message_id": "{json:id}", "message_type": "{json:type}"
}`

var whsk = inbox.Secret("whsk_" + base64.StdEncoding.EncodeToString([]byte(strings.Repeat("seed", 8))))

// signers has a source of each provider and variant that can sign.
var signers = map[string]*inbox.Source{
	"stripe":                {Provider: "stripe", Secrets: []inbox.Secret{"whsec_new", "whsec_old"}},
	"easypost v1":           {Provider: "easypost", Secrets: []inbox.Secret{"sécret"}},
	"easypost v2":           {Provider: "easypost", Variant: "v2", Secrets: []inbox.Secret{"sécret"}},
	"shippo hmac":           {Provider: "shippo", Variant: "hmac", Secrets: []inbox.Secret{"secret"}},
	"shippo url-token":      {Provider: "shippo", Variant: "url-token", Secrets: []inbox.Secret{"tok&en 1"}},
	"standard-webhooks v1":  {Provider: "standard-webhooks", Secrets: []inbox.Secret{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}},
	"standard-webhooks v1a": {Provider: "standard-webhooks", Variant: "v1a", Secrets: []inbox.Secret{whsk}},
	"hmac":                  {Provider: "hmac", Settings: []byte(hmacSettings), Secrets: []inbox.Secret{"secret"}},
}

func configure(t testing.TB, src *inbox.Source) *providers.Verifier {
	t.Helper()
	v, err := embedded(t).Configure(src)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func reasonOf(err error) providers.Reason {
	if reject, ok := errors.AsType[*providers.RejectError](err); ok {
		return reject.Reason
	}
	return ""
}

func TestSign(t *testing.T) {
	for name, src := range signers {
		t.Run(name, func(t *testing.T) {
			v := configure(t, src)
			draft := providers.Draft{Path: "/in/shop", MessageType: `say "hi"`, Now: now}
			first, err := v.Sign(draft)
			if err != nil {
				t.Fatal(err)
			}
			items, err := v.Verify(first)
			if err != nil {
				t.Fatalf("Verify: %v", err)
			}
			if items[0].MessageType != draft.MessageType {
				t.Errorf("MessageType = %q, want %q", items[0].MessageType, draft.MessageType)
			}
			second, err := v.Sign(draft)
			if err != nil {
				t.Fatal(err)
			}
			again, err := v.Verify(second)
			if err != nil {
				t.Fatal(err)
			}
			if again[0].MessageID == items[0].MessageID {
				t.Errorf("two samples have the id %q", again[0].MessageID)
			}

			draft.Forge = true
			forged, err := v.Sign(draft)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := v.Verify(forged); reasonOf(err) != providers.SignatureMismatch {
				t.Errorf("Verify a forged request = %v, want %s", err, providers.SignatureMismatch)
			}
		})
	}
}

func TestSignNone(t *testing.T) {
	v := configure(t, &inbox.Source{Provider: "none"})
	if _, err := v.Sign(providers.Draft{Now: now}); err != nil {
		t.Error(err)
	}
	if _, err := v.Sign(providers.Draft{Now: now, Forge: true}); err == nil {
		t.Error("a forged request was made where nothing is verified")
	}
}

// A source that only has the public key can't sign.
func TestSignPublicKey(t *testing.T) {
	public, _, _ := ed25519.GenerateKey(nil)
	v := configure(t, &inbox.Source{
		Provider: "standard-webhooks", Variant: "v1a",
		Secrets: []inbox.Secret{inbox.Secret("whpk_" + base64.StdEncoding.EncodeToString(public))},
	})
	if _, err := v.Sign(providers.Draft{Now: now}); err == nil || !strings.Contains(err.Error(), "whsk_") {
		t.Errorf("Sign = %v, want an error that names whsk_", err)
	}
}

// A body without what the settings name is an error of the one who sends, not a request that is refused.
func TestSignUnfitBody(t *testing.T) {
	v := configure(t, signers["stripe"])
	if _, err := v.Sign(providers.Draft{Now: now, Body: []byte(`{}`)}); err == nil {
		t.Error("Sign made a request without an id")
	}
}

func TestVerifySaysWhichSecret(t *testing.T) {
	another := map[string]inbox.Secret{
		"standard-webhooks v1":  "whsec_" + inbox.Secret(base64.StdEncoding.EncodeToString([]byte("another secret"))),
		"standard-webhooks v1a": "whsk_" + inbox.Secret(base64.StdEncoding.EncodeToString([]byte(strings.Repeat("SEED", 8)))),
	}
	for name, src := range signers {
		other, ok := another[name]
		if !ok {
			other = "another"
		}
		request, err := configure(t, src).Sign(providers.Draft{Path: "/in/shop", MessageType: "t", Now: now})
		if err != nil {
			t.Fatal(err)
		}
		for want, secrets := range [][]inbox.Secret{{src.Secrets[0], other}, {other, src.Secrets[0]}} {
			both := *src
			both.Secrets = secrets
			if items, err := configure(t, &both).Verify(request); err != nil || items[0].Secret != want {
				t.Errorf("%s: Verify = %+v, %v, want the secret %d", name, items, err, want)
			}
		}
	}
	items, err := configure(t, &inbox.Source{Provider: "none"}).Verify(&providers.Request{Body: []byte(`{}`), Now: now})
	if err != nil || items[0].Secret != -1 {
		t.Errorf("without a secret Verify = %+v, %v, want -1", items, err)
	}
}
