package processor

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/inboxd/inboxd/inbox"
)

// secretOf makes a secret of the form that handlers have from any text.
func secretOf(text string) inbox.Secret {
	return inbox.Secret("whsec_" + base64.StdEncoding.EncodeToString([]byte(text)))
}

// verify checks headers and body with the official library, against one secret.
func verify(t *testing.T, secret inbox.Secret, header http.Header, body []byte) error {
	t.Helper()
	wh, err := standardwebhooks.NewWebhook(secret.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	return wh.VerifyIgnoringTimestamp(body, header)
}

func TestSign(t *testing.T) {
	t.Parallel()
	first, second, other := secretOf("the first key, 24 bytes.."), secretOf("\x00\xff the second key"), secretOf("another")
	signers := make([]*signer, 0, 2)
	for _, secret := range []inbox.Secret{first, second} {
		s, err := newSigner(secret)
		if err != nil {
			t.Fatal(err)
		}
		signers = append(signers, s)
	}
	at := time.Unix(1_700_000_000, 0)
	for _, body := range []string{"", "{}", "a=1&a=2&b=", "\x00\xff\x1f\x8b", strings.Repeat("x", 1<<20)} {
		head := fmt.Sprintf("msg_7.%d.", at.Unix())
		// Twice, so that a hash out of the pool is used as well as a new one.
		for range 2 {
			got := string(sign([]byte("kept "), signers, []byte(head), []byte(body)))
			var want []string
			for _, secret := range []inbox.Secret{first, second} {
				wh, err := standardwebhooks.NewWebhook(secret.Reveal())
				if err != nil {
					t.Fatal(err)
				}
				signature, err := wh.Sign("msg_7", at, []byte(body))
				if err != nil {
					t.Fatal(err)
				}
				want = append(want, signature)
			}
			if want := "kept " + strings.Join(want, " "); got != want {
				t.Fatalf("sign %.20q = %s, want %s", body, got, want)
			}
			header := http.Header{}
			header.Set("webhook-id", "msg_7")
			header.Set("webhook-timestamp", strconv.FormatInt(at.Unix(), 10))
			header.Set("webhook-signature", strings.TrimPrefix(got, "kept "))
			for _, secret := range []inbox.Secret{first, second} {
				if err := verify(t, secret, header, []byte(body)); err != nil {
					t.Errorf("verify %.20q: %v", body, err)
				}
			}
			if err := verify(t, other, header, []byte(body)); err == nil {
				t.Errorf("verify %.20q with another secret succeeded", body)
			}
		}
	}
}

func TestSecrets(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		secret inbox.Secret
		ok     bool
	}{
		{"good", secretOf("key"), true},
		{"empty", "", false},
		{"no key", "whsec_", false},
		{"no prefix", "c2VjcmV0", false},
		{"not base64", "whsec_%%%", false},
		{"URL base64", "whsec_-_-_", false},
		{"not padded", "whsec_a2V5MQ", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			_, err := newSigner(tc.secret)
			if (err == nil) != tc.ok {
				t.Errorf("newSigner = %v, want ok %v", err, tc.ok)
			}
		})
	}
}
