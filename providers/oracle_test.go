package providers_test

import (
	"encoding/base64"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stripe/stripe-go/v82/webhook"

	"github.com/inboxd/inboxd/inbox"
	"github.com/inboxd/inboxd/providers"
)

// What the vendors' libraries sign is accepted, and what is signed here is accepted by them. They have
// clocks of their own, so these tests run at the present time.

var bodies = map[string]string{
	"JSON": `{"id":"evt_1","type":"t"}`, "other spacing": "{ \"id\" : \"evt_1\"\r\n}\n", "not ASCII": `{"id":"evt_1","x":"é😀\u00e9\/"}`,
	"not UTF-8": "{\"id\":\"evt_1\",\"x\":\"\xff\"}", "large": `{"id":"evt_1","x":"` + strings.Repeat("x", 1<<18) + `"}`,
}

func TestStripeLibrary(t *testing.T) {
	const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	v := configure(t, &inbox.Source{Provider: "stripe", Secrets: []inbox.Secret{secret}})
	for name, body := range bodies {
		theirs := webhook.GenerateTestSignedPayload(&webhook.UnsignedPayload{Payload: []byte(body), Secret: secret})
		r := &providers.Request{Header: http.Header{"Stripe-Signature": {theirs.Header}}, Body: theirs.Payload, Now: time.Now()}
		if items, err := v.Verify(r); err != nil || items[0].MessageID != "evt_1" {
			t.Errorf("%s: Verify what Stripe's library signs = %+v, %v", name, items, err)
		}
		ours, err := v.Sign(providers.Draft{Body: []byte(body), Now: time.Now()})
		if err != nil {
			t.Fatal(err)
		}
		if err := webhook.ValidatePayload(ours.Body, ours.Header.Get("Stripe-Signature"), secret); err != nil {
			t.Errorf("%s: Stripe's library refuses what Sign made: %v", name, err)
		}
	}
}

// Where the two differ, it is Verify that refuses: nothing gets in that Stripe's library keeps out.
func TestStripeLibraryHeaders(t *testing.T) {
	const secret = "whsec_secret"
	v := configure(t, &inbox.Source{Provider: "stripe", Secrets: []inbox.Secret{secret}})
	body := []byte(`{"id":"evt_1"}`)
	at := time.Now()
	header := webhook.GenerateTestSignedPayload(&webhook.UnsignedPayload{Payload: body, Secret: secret, Timestamp: at}).Header
	pieces := []string{",", "=", "t", "v1", "v0", "0", "a", " ", "t=1", ",v1=00", "\t", header}
	accepted := 0
	for range 20_000 {
		mutated := header
		for range rand.IntN(4) {
			at, piece := rand.IntN(len(mutated)+1), pieces[rand.IntN(len(pieces))]
			mutated = mutated[:at] + piece + mutated[min(len(mutated), at+rand.IntN(3)):]
		}
		_, err := v.Verify(&providers.Request{Header: http.Header{"Stripe-Signature": {mutated}}, Body: body, Now: at})
		if err != nil {
			continue
		}
		accepted++
		if err := webhook.ValidatePayload(body, mutated, secret); err != nil {
			t.Fatalf("Verify accepts %q, Stripe's library says %v", mutated, err)
		}
	}
	if accepted == 0 {
		t.Error("no header was accepted")
	}
}

func TestStandardWebhooksLibrary(t *testing.T) {
	for range 20 {
		key := make([]byte, 24+rand.IntN(41))
		for i := range key {
			key[i] = byte(rand.Uint32())
		}
		secret := "whsec_" + base64.StdEncoding.EncodeToString(key)
		library, err := standardwebhooks.NewWebhook(secret)
		if err != nil {
			t.Fatal(err)
		}
		v := configure(t, &inbox.Source{Provider: "standard-webhooks", Secrets: []inbox.Secret{inbox.Secret(secret)}})
		for name, body := range bodies {
			ours, err := v.Sign(providers.Draft{Body: []byte(body), Now: time.Now()})
			if err != nil {
				t.Fatal(err)
			}
			if err := library.Verify(ours.Body, ours.Header); err != nil {
				t.Errorf("%s: the library refuses what Sign made: %v", name, err)
			}
			signature, err := library.Sign(ours.Header.Get("webhook-id"), ours.Now, ours.Body)
			if err != nil {
				t.Fatal(err)
			}
			ours.Header.Set("webhook-signature", "v2,x "+signature)
			if _, err := v.Verify(ours); err != nil {
				t.Errorf("%s: Verify what the library signs: %v", name, err)
			}
		}
	}
}
