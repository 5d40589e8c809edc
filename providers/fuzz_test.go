package providers_test

import (
	"bytes"
	"maps"
	"slices"
	"testing"

	"github.com/inboxd/inboxd/providers"
)

// signatureHeaders are those of the providers in signers.
var signatureHeaders = []string{
	"Stripe-Signature", "X-Hmac-Signature", "X-Hmac-Signature-V2", "Shippo-Auth-Signature", "Webhook-Signature", "X-Signature",
}

// FuzzForge sends what no secret signed: whatever stands where the signature is looked for, it is refused
// and nothing panics. A signed request loses its standing with any change of its body.
func FuzzForge(f *testing.F) {
	names := slices.Sorted(maps.Keys(signers))
	verifiers := make([]*providers.Verifier, len(names))
	genuine := make([]*providers.Request, len(names))
	for i, name := range names {
		v := configure(f, signers[name])
		var err error
		if genuine[i], err = v.Sign(providers.Draft{Path: "/in/x", Now: now}); err != nil {
			f.Fatal(err)
		}
		verifiers[i] = v

		forged, err := v.Sign(providers.Draft{Path: "/in/x", Now: now, Forge: true})
		if err != nil {
			f.Fatal(err)
		}
		signature := ""
		for _, header := range signatureHeaders {
			signature += forged.Header.Get(header)
		}
		f.Add(uint(i), signature, forged.RawQuery, forged.Body, uint(i), byte(1))
	}
	f.Add(uint(0), "", "", []byte(nil), uint(0), byte(0))
	f.Add(uint(1), "hmac-sha256-hex=", "token=", []byte("\x00"), uint(9), byte(0x20))
	f.Add(uint(4), "t=1,v1=,v1=00,v1", "%zz&token=%00", []byte(`{"id":"a"}`), uint(1), byte(0x80))

	f.Fuzz(func(t *testing.T, which uint, signature, query string, body []byte, position uint, flip byte) {
		i := which % uint(len(names))
		r := *genuine[i]
		r.Header, r.RawQuery, r.Body = maps.Clone(r.Header), query, body
		for _, header := range signatureHeaders {
			r.Header.Set(header, signature)
		}
		if items, err := verifiers[i].Verify(&r); err == nil {
			t.Fatalf("%s: Verify accepts the signature %q, query %q, body %q as %+v", names[i], signature, query, body, items)
		}

		if flip == 0 || names[i] == "shippo url-token" { // a token covers no body
			return
		}
		r = *genuine[i]
		r.Body = bytes.Clone(r.Body)
		r.Body[position%uint(len(r.Body))] ^= flip
		if _, err := verifiers[i].Verify(&r); reasonOf(err) != providers.SignatureMismatch {
			t.Fatalf("%s: Verify with another body = %v, want %s", names[i], err, providers.SignatureMismatch)
		}
	})
}

// What one source's provider signs is nothing to another source.
func TestForeignSignatures(t *testing.T) {
	for name, src := range signers {
		r, err := configure(t, src).Sign(providers.Draft{Path: "/in/x", Now: now})
		if err != nil {
			t.Fatal(err)
		}
		for otherName, other := range signers {
			if name == otherName {
				continue
			}
			if _, err := configure(t, other).Verify(r); err == nil {
				t.Errorf("%s accepts what %s signed", otherName, name)
			}
		}
	}
}
