package providers_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/inboxd/inboxd/inbox"
	"github.com/inboxd/inboxd/providers"
)

// vector is one request and the verdict that is right for it: published by the vendor, made with its
// library, or computed from its description (origin says which).
type vector struct {
	Name   string
	Why    string
	Config struct {
		Variant          string
		Secret           inbox.Secret
		Secrets          []inbox.Secret
		URLToken         inbox.Secret   `json:"url_token"`
		PublicKeys       []inbox.Secret `json:"public_keys"`
		ToleranceSeconds int            `json:"tolerance_seconds"`
		Now              any
	}
	Method          string
	Path            string
	Query           string
	Headers         map[string]string
	BodyBase64      []byte `json:"body_base64"`
	Expect          string
	ExpectMessageID *string               `json:"expect_message_id"`
	ExpectType      *string               `json:"expect_type"`
	ExpectResponse  *struct{ Status int } `json:"expect_response"`
}

func (v *vector) source(provider string) *inbox.Source {
	src := &inbox.Source{Provider: provider, Variant: v.Config.Variant}
	switch {
	case v.Config.PublicKeys != nil:
		src.Variant, src.Secrets = "v1a", v.Config.PublicKeys
	case v.Config.Secrets != nil:
		src.Secrets = v.Config.Secrets
	case v.Config.URLToken != "":
		src.Secrets = []inbox.Secret{v.Config.URLToken}
	default:
		src.Secrets = []inbox.Secret{v.Config.Secret}
	}
	if v.Config.ToleranceSeconds > 0 {
		src.Settings = fmt.Appendf(nil, `{"timestamp": {"tolerance": "%ds"}}`, v.Config.ToleranceSeconds)
	}
	return src
}

func (v *vector) request(t *testing.T) *providers.Request {
	r := &providers.Request{Method: v.Method, Path: v.Path, RawQuery: v.Query, Header: http.Header{}, Body: v.BodyBase64}
	for name, value := range v.Headers {
		r.Header.Add(name, value)
	}
	switch now := v.Config.Now.(type) {
	case float64:
		r.Now = time.Unix(int64(now), 0)
	case string:
		var err error
		if r.Now, err = time.Parse(time.RFC3339, now); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

func TestVectors(t *testing.T) {
	catalog := embedded(t)
	for provider, count := range map[string]int{"stripe": 12, "easypost": 8, "shippo": 8, "standard-webhooks": 14} {
		text, err := os.ReadFile("testdata/vectors/" + provider + ".json")
		if err != nil {
			t.Fatal(err)
		}
		var vectors []vector
		if err := json.Unmarshal(text, &vectors); err != nil {
			t.Fatal(err)
		}
		if len(vectors) != count {
			t.Errorf("%s has %d vectors, want %d", provider, len(vectors), count)
		}
		for _, vec := range vectors {
			t.Run(provider+"/"+vec.Name, func(t *testing.T) {
				v, err := catalog.Configure(vec.source(provider))
				if err != nil {
					if vec.Name != "reject_empty_secret" {
						t.Fatalf("Configure: %v", err)
					}
					return
				}
				r := vec.request(t)
				items, err := v.Verify(r)
				if vec.Expect == "reject" {
					if err == nil {
						t.Errorf("Verify accepted it; %s", vec.Why)
					}
					return
				}
				if err != nil {
					t.Fatalf("Verify: %v; %s", err, vec.Why)
				}
				if len(items) != 1 {
					t.Fatalf("Verify = %d items, want 1", len(items))
				}
				if id := items[0].MessageID; vec.ExpectMessageID == nil || id != *vec.ExpectMessageID {
					t.Errorf("MessageID = %q, want %v", id, vec.ExpectMessageID)
				}
				if kind := items[0].MessageType; vec.ExpectType == nil && kind != "" || vec.ExpectType != nil && kind != *vec.ExpectType {
					t.Errorf("MessageType = %q, want %v", kind, vec.ExpectType)
				}
				if !bytes.Equal(items[0].Body, r.Body) {
					t.Error("Body is not the request's")
				}
				if vec.ExpectResponse != nil && v.Answer().Status != vec.ExpectResponse.Status {
					t.Errorf("Answer = %d, want %d", v.Answer().Status, vec.ExpectResponse.Status)
				}
			})
		}
	}
}

func embedded(t testing.TB) *providers.Catalog {
	t.Helper()
	catalog, err := providers.Embedded()
	if err != nil {
		t.Fatal(err)
	}
	return catalog
}
