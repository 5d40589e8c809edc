package providers_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/inboxd/inboxd/inbox"
)

func TestNames(t *testing.T) {
	want := []string{"easypost", "hmac", "none", "shippo", "standard-webhooks", "stripe"}
	if names := embedded(t).Names(); !slices.Equal(names, want) {
		t.Errorf("Names = %v, want %v", names, want)
	}
}

// A source with a mistake is refused, with every mistake and with nothing of its secrets.
func TestConfigureMistakes(t *testing.T) {
	type secrets = []inbox.Secret
	const hush = "hush-hush" // in every secret that is refused for its form
	for _, tt := range []struct {
		name string
		src  inbox.Source
		want []string
	}{
		{"no provider", inbox.Source{}, []string{`provider: "" is unknown; known are easypost, hmac, none`}},
		{"an unknown provider", inbox.Source{Provider: "None"}, []string{`provider: "None" is unknown`}},
		{"an unknown variant", inbox.Source{Provider: "stripe", Variant: "v0", Secrets: secrets{"x"}}, []string{`variant: "v0" is not one of stripe: v1`}},
		{"no variant where there are two", inbox.Source{Provider: "shippo", Secrets: secrets{"x"}}, []string{"variant: ", "hmac, url-token"}},
		{"no secret", inbox.Source{Provider: "stripe"}, []string{"secrets: there is none"}},
		{"an empty secret", inbox.Source{Provider: "stripe", Secrets: secrets{""}}, []string{"secrets: number 1 is empty"}},
		{"a blank secret", inbox.Source{Provider: "stripe", Secrets: secrets{" \n\t"}}, []string{"secrets: number 1 is empty"}},
		{"a blank secret beside a good one", inbox.Source{Provider: "stripe", Secrets: secrets{"x", " "}}, []string{"secrets: number 2 is empty"}},
		{"a blank token", inbox.Source{Provider: "shippo", Variant: "url-token", Secrets: secrets{" "}}, []string{"secrets: number 1 is empty"}},
		{"a prefix alone", inbox.Source{Provider: "standard-webhooks", Secrets: secrets{"whsec_"}}, []string{"secrets: number 1 is not base64"}},
		{"a secret that isn't base64", inbox.Source{Provider: "standard-webhooks", Secrets: secrets{hush}}, []string{"secrets: number 1 is not base64"}},
		{"a public key where a secret is expected", inbox.Source{Provider: "standard-webhooks", Secrets: secrets{"whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4="}}, []string{
			"secrets: number 1 is not base64", "keys of another variant",
		}},
		{"a secret where a public key is expected", inbox.Source{Provider: "standard-webhooks", Variant: "v1a", Secrets: secrets{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}}, []string{
			"secrets: number 1 is not whpk_",
		}},
		{"a public key that is too short", inbox.Source{Provider: "standard-webhooks", Variant: "v1a", Secrets: secrets{"whpk_1SiA"}}, []string{
			"secrets: number 1 is not whpk_",
		}},
		{"a private key whose public half is another's", inbox.Source{
			Provider: "standard-webhooks", Variant: "v1a",
			Secrets: secrets{"whsk_" + "c2VlZHNlZWRzZWVkc2VlZHNlZWRzZWVkc2VlZHNlZWRzZWVkc2VlZHNlZWRzZWVkc2VlZHNlZWRzZWVkc2VlZA=="},
		}, []string{"secrets: number 1 is not whpk_"}},
		{"secrets for none", inbox.Source{Provider: "none", Secrets: secrets{hush}}, []string{"secrets: the provider none verifies nothing"}},

		{"an unknown setting", inbox.Source{Provider: "stripe", Settings: []byte(`{"tolerance": "1m"}`), Secrets: secrets{"x"}}, []string{
			"settings: tolerance: unknown key; known are biz_key, ordering_key, timestamp",
		}},
		{"a setting that the provider fixes", inbox.Source{Provider: "stripe", Settings: []byte(`{"signed": "{body}", "signature": {"scheme": "none"}, "timestamp": {"unit": "ms"}}`), Secrets: secrets{"x"}}, []string{
			"settings: signed: is fixed by the provider", "settings: signature: is fixed", "settings: timestamp.unit: is fixed",
		}},
		{"a scheme for hmac", inbox.Source{Provider: "hmac", Settings: []byte(`{"signature": {"scheme": "none"}}`)}, []string{"settings: signature.scheme: is fixed"}},
		{"a key twice", inbox.Source{Provider: "none", Settings: []byte(`{"items": "json:a", "items": "json:b"}`)}, []string{"settings: items: is set twice"}},
		{"settings that are not JSON", inbox.Source{Provider: "none", Settings: []byte(`{"items": `)}, []string{"settings: ", "is not JSON"}},
		{"settings that are a list", inbox.Source{Provider: "none", Settings: []byte(`[]`)}, []string{"settings: is a list; an object is expected"}},
		{"two settings", inbox.Source{Provider: "none", Settings: []byte(`{} {}`)}, []string{"settings: more than one JSON value"}},
		{"settings without end", inbox.Source{Provider: "none", Settings: []byte(strings.Repeat("[", 100_000))}, []string{"nested too deeply"}},
		{"nothing configured", inbox.Source{Provider: "hmac"}, []string{
			"settings: signature.in: is missing", "settings: message_id: is missing", "secrets: there is none",
		}},
		{"many mistakes", inbox.Source{Provider: "hmac", Settings: []byte(`{
			"signature": {"algorithm": "md5", "in": "header:", "pairs": {"name": "v1"}, "encoding": "base32"},
			"signed": "{header:X-Time}", "timestamp": {"in": "header:X-Date", "unit": "us", "tolerance": "-1s"},
			"message_id": "{header:X Id}", "event_time": {"from": "{json:a..b}"},
			"biz_key": {"types": ["["]}, "items": "header:x", "answer": {"status": 500, "text": "ok"}
		}`), Secrets: secrets{""}}, []string{
			"signature.algorithm: must be one of sha1, sha256, sha512",
			"signature.in: header needs a name",
			"signature.encoding: must be one of hex, hex-lower, base64",
			"signature.pairs: needs between, within and name",
			"signed: must contain {body}",
			"timestamp.unit: must be one of date, ms, s",
			"timestamp.tolerance: must be a duration above zero",
			"timestamp.in: must be part of signed",
			"message_id: {header:X Id}: is not the name of a header",
			"event_time.from: {json:a..b}: is not a path",
			"biz_key.types: syntax error in pattern",
			"items: a place of kind json is expected",
			"answer.status: must be a status from 200 to 299",
			"answer.text: unknown key",
			"secrets: number 1 is empty",
		}},
		{"a pair without pairs", inbox.Source{Provider: "hmac", Settings: []byte(`{"signature": {"in": "header:X-Sig"}, "signed": "{pair:t}.{body}", "message_id": "{json:id}"}`), Secrets: secrets{"x"}}, []string{
			"signed: has a pair, but the signature is not made of pairs",
		}},
		{"a header's id for all items", inbox.Source{Provider: "none", Settings: []byte(`{"items": "json:events", "message_id": "{header:X-Id}"}`)}, []string{
			"message_id: must contain a json place or body_hash",
		}},
		{"a biz_key without types", inbox.Source{Provider: "stripe", Settings: []byte(`{"biz_key": {"from": "{json:data.id}"}}`), Secrets: secrets{"x"}}, []string{"biz_key: needs types"}},
		{"a key that isn't hex", inbox.Source{Provider: "hmac", Settings: settings(`"key": "hex"`, ""), Secrets: secrets{"abc", hush}}, []string{
			"secrets: number 1 is not hex", "secrets: number 2 is not hex",
		}},
		{"a key of another scheme", inbox.Source{Provider: "hmac", Settings: settings(`"key": "whpk-base64"`, ""), Secrets: secrets{hush}}, []string{"signature.key: whpk-base64 is no key of an HMAC"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v, err := embedded(t).Configure(&tt.src)
			if err == nil || v != nil {
				t.Fatalf("Configure = %v, %v, want an error", v, err)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("Configure = %v\nwant %s", err, want)
				}
			}
			if strings.Contains(err.Error(), hush) {
				t.Errorf("Configure = %v, which tells a secret", err)
			}
		})
	}
}

// settings are those of an hmac source: members of signature, and others.
func settings(signature, others string) []byte {
	if signature != "" {
		signature = ", " + signature
	}
	if others != "" {
		others = ", " + others
	}
	return fmt.Appendf(nil, `{"signature": {"in": "header:X-Signature"%s}, "message_id": ["{json:id}"]%s}`, signature, others)
}
