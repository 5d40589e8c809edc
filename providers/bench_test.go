package providers_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"testing"

	"github.com/inboxd/inboxd/providers"
)

// BenchmarkVerify is Stripe's sample, 1.5 KB; bare is the HMAC that no verifier can do without.
func BenchmarkVerify(b *testing.B) {
	v := configure(b, signers["stripe"])
	r, err := v.Sign(providers.Draft{Now: now})
	if err != nil {
		b.Fatal(err)
	}
	b.Run("bare", func(b *testing.B) {
		mac := hmac.New(sha256.New, []byte("whsec_new"))
		sum := make([]byte, 0, mac.Size())
		b.SetBytes(int64(len(r.Body)))
		b.ReportAllocs()
		for b.Loop() {
			mac.Reset()
			mac.Write(r.Body)
			sum = mac.Sum(sum[:0])
		}
	})
	b.Run("stripe", func(b *testing.B) {
		b.SetBytes(int64(len(r.Body)))
		b.ReportAllocs()
		for b.Loop() {
			if _, err := v.Verify(r); err != nil {
				b.Fatal(err)
			}
		}
	})
}
