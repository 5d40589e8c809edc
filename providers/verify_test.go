package providers_test

import (
	"bytes"
	"compress/gzip"
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"hash"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/inboxd/inboxd/inbox"
	"github.com/inboxd/inboxd/providers"
)

const body = `{"id": "evt_1", "type": "order.paid"}`

func mac(hash func() hash.Hash, key, signed string) []byte {
	h := hmac.New(hash, []byte(key))
	h.Write([]byte(signed))
	return h.Sum(nil)
}

func hexMAC(key, signed string) string { return hex.EncodeToString(mac(sha256.New, key, signed)) }

// TestHMAC holds the settings of the generic provider against signatures made here, one by one.
func TestHMAC(t *testing.T) {
	unix := strconv.FormatInt(now.Unix(), 10)
	key := "\x00\x01key\xff"
	for _, tt := range []struct {
		name, settings string
		secret         inbox.Secret
		query          string
		header         map[string]string
		want           providers.Reason
	}{
		{name: "defaults", header: map[string]string{"X-Signature": hexMAC("secret", body)}},
		{name: "upper-case hex", header: map[string]string{"X-Signature": strings.ToUpper(hexMAC("secret", body))}},
		{
			name: "upper-case hex where lower case is sent", settings: `{"signature": {"in": "header:X-Signature", "encoding": "hex-lower"}, "message_id": "{json:id}"}`,
			header: map[string]string{"X-Signature": strings.ToUpper(hexMAC("secret", body))}, want: providers.MalformedSignature,
		},
		{
			name: "sha1", settings: string(settings(`"algorithm": "sha1"`, "")),
			header: map[string]string{"X-Signature": hex.EncodeToString(mac(sha1.New, "secret", body))},
		},
		{
			name: "sha512, base64", settings: string(settings(`"algorithm": "sha512", "encoding": "base64"`, "")),
			header: map[string]string{"X-Signature": base64.StdEncoding.EncodeToString(mac(sha512.New, "secret", body))},
		},
		{
			name: "another algorithm than configured", settings: string(settings(`"algorithm": "sha512"`, "")),
			header: map[string]string{"X-Signature": hexMAC("secret", body)}, want: providers.SignatureMismatch,
		},
		{
			name: "base64 without padding", settings: string(settings(`"encoding": "base64"`, "")),
			header: map[string]string{"X-Signature": base64.RawStdEncoding.EncodeToString(mac(sha256.New, "secret", body))}, want: providers.MalformedSignature,
		},
		{
			name: "hex key", settings: string(settings(`"key": "hex"`, "")), secret: inbox.Secret(hex.EncodeToString([]byte(key))),
			header: map[string]string{"X-Signature": hexMAC(key, body)},
		},
		{
			name: "base64 key", settings: string(settings(`"key": "base64"`, "")), secret: inbox.Secret(base64.StdEncoding.EncodeToString([]byte(key))),
			header: map[string]string{"X-Signature": hexMAC(key, body)},
		},
		{
			name: "whsec key", settings: string(settings(`"key": "whsec-base64"`, "")), secret: inbox.Secret("whsec_" + base64.StdEncoding.EncodeToString([]byte(key))),
			header: map[string]string{"X-Signature": hexMAC(key, body)},
		},
		{
			name: "prefix", settings: string(settings(`"prefix": "sha256="`, "")),
			header: map[string]string{"X-Signature": "sha256=" + hexMAC("secret", body)},
		},
		{
			name: "without its prefix", settings: string(settings(`"prefix": "sha256="`, "")),
			header: map[string]string{"X-Signature": hexMAC("secret", body)}, want: providers.MalformedSignature,
		},
		{
			name: "in the query", settings: `{"signature": {"in": "query:sig", "encoding": "base64"}, "message_id": "{json:id}"}`,
			query: url.Values{"sig": {base64.StdEncoding.EncodeToString(mac(sha256.New, "secret", body))}}.Encode(),
		},
		{
			name: "in the query, with a line end", settings: `{"signature": {"in": "query:sig", "encoding": "base64"}, "message_id": "{json:id}"}`,
			query: url.Values{"sig": {base64.StdEncoding.EncodeToString(mac(sha256.New, "secret", body)) + "\n"}}.Encode(), want: providers.MalformedSignature,
		},
		{
			name: "twice in the query", settings: `{"signature": {"in": "query:sig"}, "message_id": "{json:id}"}`,
			query: "sig=" + hexMAC("secret", body) + "&sig=00", want: providers.MalformedSignature,
		},
		{
			name: "in a header that isn't the one", settings: `{"signature": {"in": "query:sig"}, "message_id": "{json:id}"}`,
			header: map[string]string{"Sig": hexMAC("secret", body)}, want: providers.NoSignature,
		},
		{
			name:     "method, path, query and header are signed",
			settings: string(settings("", `"signed": "{method} {path}\n{query:shop}\n{header:X-Nonce}\n{body}\n"`)),
			query:    "shop=a%20b", header: map[string]string{
				"X-Nonce": "n1", "X-Signature": hexMAC("secret", "POST /in/shop\na b\nn1\n"+body+"\n"),
			},
		},
		{
			name:     "a signed header is missing",
			settings: string(settings("", `"signed": "{header:X-Nonce}{body}"`)),
			header:   map[string]string{"X-Signature": hexMAC("secret", body)}, want: providers.SignedPartMissing,
		},
		{
			name:     "time in seconds",
			settings: string(settings("", `"signed": "{header:X-Time}:{body}", "timestamp": {"in": "header:X-Time", "unit": "s", "tolerance": "90s"}`)),
			header:   map[string]string{"X-Time": unix, "X-Signature": hexMAC("secret", unix+":"+body)},
		},
		{
			name:     "time in milliseconds, in the query",
			settings: string(settings("", `"signed": "{query:ts}:{body}", "timestamp": {"in": "query:ts", "unit": "ms", "tolerance": "90s"}`)),
			query:    "ts=" + unix + "000", header: map[string]string{"X-Signature": hexMAC("secret", unix+"000:"+body)},
		},
		{
			name:     "seconds read as milliseconds",
			settings: string(settings("", `"signed": "{header:X-Time}:{body}", "timestamp": {"in": "header:X-Time", "unit": "ms", "tolerance": "90s"}`)),
			header:   map[string]string{"X-Time": unix, "X-Signature": hexMAC("secret", unix+":"+body)}, want: providers.TimestampTooOld,
		},
		{
			name:     "time as a date",
			settings: string(settings("", `"signed": "{header:Date}:{body}", "timestamp": {"in": "header:Date", "unit": "date", "tolerance": "90s"}`)),
			header:   map[string]string{"Date": now.Format(http.TimeFormat), "X-Signature": hexMAC("secret", now.Format(http.TimeFormat)+":"+body)},
		},
		{
			name:     "pairs in any order, with spaces",
			settings: string(settings(`"pairs": {"between": ";", "within": ":", "name": "s"}`, `"signed": "{pair:n}{body}"`)),
			header:   map[string]string{"X-Signature": "s:" + hexMAC("secret", "7"+body) + "; x; n:7"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.settings == "" {
				tt.settings = string(settings("", ""))
			}
			if tt.secret == "" {
				tt.secret = " secret\n" // as it is copied
			}
			v := configure(t, &inbox.Source{Provider: "hmac", Settings: []byte(tt.settings), Secrets: []inbox.Secret{tt.secret}})
			r := &providers.Request{Method: "POST", Path: "/in/shop", RawQuery: tt.query, Header: http.Header{}, Body: []byte(body), Now: now}
			for name, text := range tt.header {
				r.Header.Set(name, text)
			}
			items, err := v.Verify(r)
			if reasonOf(err) != tt.want {
				t.Fatalf("Verify = %v, want %q", err, tt.want)
			}
			if tt.want != "" {
				return
			}
			if items[0].MessageID != "evt_1" {
				t.Errorf("MessageID = %q, want evt_1", items[0].MessageID)
			}
			r.Body = []byte(strings.Replace(body, "paid", "lost", 1))
			if _, err := v.Verify(r); reasonOf(err) != providers.SignatureMismatch {
				t.Errorf("Verify another body = %v, want %s", err, providers.SignatureMismatch)
			}
		})
	}
}

// TestStripeHeader is the signature's header with everything that can be wrong with it.
func TestStripeHeader(t *testing.T) {
	v := configure(t, &inbox.Source{Provider: "stripe", Secrets: []inbox.Secret{"new", "old"}})
	at := func(offset time.Duration) string { return strconv.FormatInt(now.Add(offset).Unix(), 10) }
	sign := func(key, t string) string { return hexMAC(key, t+"."+body) }
	fresh := at(0)
	good := "t=" + fresh + ",v1=" + sign("new", fresh)
	for _, tt := range []struct {
		name   string
		header []string
		want   providers.Reason
	}{
		{"authentic", []string{good}, ""},
		{"signed with the old secret", []string{"t=" + fresh + ",v1=" + sign("old", fresh)}, ""},
		{"with both secrets", []string{"t=" + fresh + ",v1=" + sign("old", fresh) + ",v1=" + sign("new", fresh)}, ""},
		{"one of another's", []string{"t=" + fresh + ",v1=" + sign("other", fresh) + ",v1=" + sign("new", fresh)}, ""},
		{"one that isn't hex", []string{"t=" + fresh + ",v1=zz,v1=" + sign("new", fresh)}, ""},
		{"300 s old", []string{"t=" + at(-300*time.Second) + ",v1=" + sign("new", at(-300*time.Second))}, ""},
		{"301 s old", []string{"t=" + at(-301*time.Second) + ",v1=" + sign("new", at(-301*time.Second))}, providers.TimestampTooOld},
		{"300 s ahead", []string{"t=" + at(300*time.Second) + ",v1=" + sign("new", at(300*time.Second))}, ""},
		{"301 s ahead", []string{"t=" + at(301*time.Second) + ",v1=" + sign("new", at(301*time.Second))}, providers.TimestampTooNew},
		{"in the year 9999", []string{"t=253402300799,v1=" + sign("new", "253402300799")}, providers.TimestampTooNew},
		{"in the year 292277026596", []string{"t=9223372036854775807,v1=" + sign("new", "9223372036854775807")}, providers.TimestampMalformed},
		{"signed with another's secret", []string{"t=" + fresh + ",v1=" + sign("other", fresh)}, providers.SignatureMismatch},
		{"a fresh time put on it", []string{"t=" + at(-time.Second) + ",v1=" + sign("new", fresh)}, providers.SignatureMismatch},
		{"cut", []string{"t=" + fresh + ",v1=" + sign("new", fresh)[:62]}, providers.SignatureMismatch},
		{"v0 alone", []string{"t=" + fresh + ",v0=" + sign("new", fresh)}, providers.NoSignature},
		{"no header", nil, providers.NoSignature},
		{"empty", []string{""}, providers.NoSignature},
		{"twice", []string{good, good}, providers.MalformedSignature},
		{"twice, the first wrong", []string{"t=" + fresh + ",v1=00", good}, providers.MalformedSignature},
		{"none of it hex", []string{"t=" + fresh + ",v1=zz"}, providers.MalformedSignature},
		{"empty v1", []string{"t=" + fresh + ",v1="}, providers.MalformedSignature},
		{"no pair", []string{good + ",x"}, providers.MalformedSignature},
		{"three parts", []string{good + ",x=y=z"}, providers.MalformedSignature},
		{"too many", []string{"t=" + fresh + strings.Repeat(",v1=00", 32) + ",v1=" + sign("new", fresh)}, providers.MalformedSignature},
		{"no time", []string{"v1=" + sign("new", fresh)}, providers.TimestampMissing},
		{"empty time", []string{"t=,v1=" + sign("new", fresh)}, providers.TimestampMissing},
		{"two times", []string{"t=" + fresh + "," + good}, providers.TimestampMissing},
		{"a time with a sign", []string{"t=+" + fresh + ",v1=" + sign("new", "+"+fresh)}, providers.TimestampMalformed},
		{"a time with a fraction", []string{"t=" + fresh + ".0,v1=" + sign("new", fresh+".0")}, providers.TimestampMalformed},
		{"a time that overflows", []string{"t=99999999999999999999,v1=" + sign("new", fresh)}, providers.TimestampMalformed},
		{"no time at all", []string{"t=now,v1=" + sign("new", "now")}, providers.TimestampMalformed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := &providers.Request{Method: "POST", Header: http.Header{}, Body: []byte(body), Now: now}
			for _, line := range tt.header {
				r.Header.Add("Stripe-Signature", line)
			}
			if _, err := v.Verify(r); reasonOf(err) != tt.want {
				t.Errorf("Verify = %v, want %q", err, tt.want)
			}
		})
	}
}

// An id with a full stop would let the same signed bytes be read in two ways; a repeated one would leave it
// to the reader which is meant.
func TestStandardWebhooksID(t *testing.T) {
	v := configure(t, signers["standard-webhooks v1"])
	for _, tt := range []struct {
		name, id, again string
		want            providers.Reason
	}{
		{"one", "msg_1", "", ""},
		{"with a full stop", "msg.1", "", providers.RequirementFailed},
		{"empty", "", "", providers.SignedPartMissing},
		{"twice", "msg_1", "msg_1", providers.SignedPartMissing},
		{"too long to be stored", strings.Repeat("x", 513), "", providers.NoMessageID},
		{"not UTF-8", "msg_\xff", "", providers.NoMessageID},
	} {
		t.Run(tt.name, func(t *testing.T) {
			key, _ := base64.StdEncoding.DecodeString("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
			unix := strconv.FormatInt(now.Unix(), 10)
			signature := mac(sha256.New, string(key), tt.id+"."+unix+"."+body)
			r := &providers.Request{Header: http.Header{
				"Webhook-Id": {tt.id}, "Webhook-Timestamp": {unix}, "Webhook-Signature": {"v1," + base64.StdEncoding.EncodeToString(signature)},
			}, Body: []byte(body), Now: now}
			if tt.again != "" {
				r.Header.Add("Webhook-Id", tt.again)
			}
			if _, err := v.Verify(r); reasonOf(err) != tt.want {
				t.Errorf("Verify = %v, want %q", err, tt.want)
			}
		})
	}
}

// A request that EasyPost signed for another path is genuine, but not for this source.
func TestEasyPostPath(t *testing.T) {
	v := configure(t, signers["easypost v2"])
	r, err := v.Sign(providers.Draft{Path: "/in/one", Now: now})
	if err != nil {
		t.Fatal(err)
	}
	r.Path = "/in/two"
	if _, err := v.Verify(r); reasonOf(err) != providers.RequirementFailed {
		t.Errorf("Verify = %v, want %s", err, providers.RequirementFailed)
	}
}

// TestIdentity is what a body has to say who it is.
func TestIdentity(t *testing.T) {
	long := strings.Repeat("x", 513)
	for _, tt := range []struct {
		name, messageID, body string
		want                  string
		reason                providers.Reason
	}{
		{"a text", `"{json:id}"`, `{"id":"a"}`, "a", ""},
		{"a number", `"{json:id}"`, `{"id":9007199254740993}`, "9007199254740993", ""},
		{"a number with a fraction", `"{json:id}"`, `{"id":1.50}`, "1.50", ""},
		{"missing", `"{json:id}"`, `{}`, "", providers.NoMessageID},
		{"empty", `"{json:id}"`, `{"id":""}`, "", providers.NoMessageID},
		{"blank", `"{json:id}"`, `{"id":" \t"}`, "", providers.NoMessageID},
		{"null", `"{json:id}"`, `{"id":null}`, "", providers.NoMessageID},
		{"an object", `"{json:id}"`, `{"id":{"a":"b"}}`, "", providers.NoMessageID},
		{"an array", `"{json:id}"`, `{"id":["a"]}`, "", providers.NoMessageID},
		{"a boolean, which strangers share", `"{json:id}"`, `{"id":true}`, "", providers.NoMessageID},
		{"twice", `"{json:id}"`, `{"id":"a","id":"b"}`, "", providers.NoMessageID},
		{"too long", `"{json:id}"`, `{"id":"` + long + `"}`, "", providers.NoMessageID},
		{"with NUL", `"{json:id}"`, "{\"id\":\"a\\u0000\"}", "", providers.NoMessageID},
		{"a lone surrogate", `"{json:id}"`, "{\"id\":\"\\ud800\"}", "", providers.NoMessageID},
		{"not JSON", `"{json:id}"`, `id=a`, "", providers.MalformedBody},
		{"no body", `"{json:id}"`, ``, "", providers.MalformedBody},
		{"cut off", `"{json:id}"`, `{"id":"a"`, "", providers.MalformedBody},
		{"the second choice", `["{json:id}", "{json:uuid}"]`, `{"id":null,"uuid":"u"}`, "u", ""},
		{"the second choice is not taken", `["{json:id}", "{json:uuid}"]`, `{"id":"a","uuid":"u"}`, "a", ""},
		{"the hash where the id is missing", `["{json:id}", "{body_hash}"]`, `{}`, "body:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a", ""},
		{"the hash where the body isn't JSON", `["{json:id}", "{body_hash}"]`, "\x1f\x8b\x00", "body:4f49dc02c9600234c87f9cd67a65bba18e1ec8bab309c4a720971b25d21f144a", ""},
		{"several parts", `"{json:code}:{json:ref}:{json:ok}"`, `{"code":"AUTH","ref":"r:1","ok":true}`, "", providers.NoMessageID},
		{"several parts, apart", `"{json:code}:{json:ref}:{json:ok}"`, `{"code":"AUTH","ref":"r1","ok":true}`, "AUTH:r1:true", ""},
		{"a part is missing", `"{json:code}:{json:ref}"`, `{"code":"AUTH"}`, "", providers.NoMessageID},
		{"a header", `"{header:X-Id}"`, "\x00not JSON", "h1", ""},
		{"a header twice", `"{header:X-Twice}"`, `{}`, "", providers.NoMessageID},
		{"the query", `"{query:id}"`, `{}`, "q1", ""},
		{"the query twice", `"{query:twice}"`, `{}`, "", providers.NoMessageID},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := configure(t, &inbox.Source{Provider: "none", Settings: []byte(`{"message_id": ` + tt.messageID + `}`)})
			items, err := v.Verify(&providers.Request{
				RawQuery: "id=q1&twice=1&twice=2", Header: http.Header{"X-Id": {"h1"}, "X-Twice": {"1", "2"}}, Body: []byte(tt.body), Now: now,
			})
			if tt.reason != "" {
				if reasonOf(err) != tt.reason || !tt.reason.Genuine() {
					t.Fatalf("Verify = %v, %v, want %s", items, err, tt.reason)
				}
				return
			}
			if err != nil {
				t.Fatalf("Verify: %v", err)
			}
			if len(items) != 1 || items[0].MessageID != tt.want {
				t.Errorf("Verify = %+v, want the id %q", items, tt.want)
			}
		})
	}
}

// Everything else that a message has, from all the places it can stand in.
func TestFields(t *testing.T) {
	v := configure(t, &inbox.Source{Provider: "stripe", Secrets: []inbox.Secret{"secret"}, Settings: []byte(`{
		"ordering_key": "{json:data.object.id}",
		"biz_key": {"types": ["payment_intent.*"], "from": "{json:data.object.id}/{json:data.object.status}"}
	}`)})
	sign := func(body string) providers.Item {
		t.Helper()
		r, err := v.Sign(providers.Draft{Now: now, Body: []byte(body)})
		if err != nil {
			t.Fatal(err)
		}
		items, err := v.Verify(r)
		if err != nil {
			t.Fatal(err)
		}
		return items[0]
	}
	item := sign(`{"id":"evt_1","type":"payment_intent.succeeded","created":1796039995,"data":{"object":{"id":"pi_1","status":"succeeded"}}}`)
	want := providers.Item{
		MessageID: "evt_1", MessageType: "payment_intent.succeeded", OrderingKey: "pi_1", BizKey: "pi_1/succeeded",
		EventTime: time.Unix(1796039995, 0),
	}
	if item.Body = nil; !equal(item, want) {
		t.Errorf("item = %+v, want %+v", item, want)
	}
	item = sign(`{"id":"evt_2","type":"charge.failed","created":"soon","data":{"object":{"id":"ch_1","status":"failed"}}}`)
	want = providers.Item{MessageID: "evt_2", MessageType: "charge.failed", OrderingKey: "ch_1"}
	if item.Body = nil; !equal(item, want) {
		t.Errorf("item = %+v, want %+v", item, want)
	}
	item = sign(`{"id":"evt_3"}`)
	if item.Body = nil; !equal(item, providers.Item{MessageID: "evt_3"}) {
		t.Errorf("item = %+v, want the id alone", item)
	}
}

// What each sheet takes from a body of its provider, the id apart.
func TestSheetFields(t *testing.T) {
	at := time.Date(2026, 11, 30, 8, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		source, body string
		want         providers.Item
	}{
		{
			"easypost v1", `{"id":"evt_1","description":"tracker.updated","created_at":"2026-11-30T08:00:00.000Z","result":{"id":"trk_1"}}`,
			providers.Item{MessageType: "tracker.updated", OrderingKey: "trk_1", EventTime: at},
		},
		{
			"shippo hmac", `{"event":"track_updated","data":{"carrier":"usps","tracking_number":"92","tracking_status":{"status_date":"2026-11-30T08:00:00Z"}}}`,
			providers.Item{MessageType: "track_updated", OrderingKey: "usps/92", EventTime: at},
		},
		{
			"shippo url-token", `{"event":"transaction_updated","data":{"object_id":"tx1","object_updated":"2026-11-30T08:00:00Z"}}`,
			providers.Item{MessageType: "transaction_updated", OrderingKey: "tx1", EventTime: at},
		},
		{
			"standard-webhooks v1", `{"type":"order.paid","timestamp":"2026-11-30T09:00:00+01:00","data":{}}`,
			providers.Item{MessageType: "order.paid", EventTime: at},
		},
	} {
		t.Run(tt.source, func(t *testing.T) {
			v := configure(t, signers[tt.source])
			r, err := v.Sign(providers.Draft{Now: now, Body: []byte(tt.body), Path: "/in/x"})
			if err != nil {
				t.Fatal(err)
			}
			items, err := v.Verify(r)
			if err != nil {
				t.Fatal(err)
			}
			tt.want.MessageID, tt.want.Body = items[0].MessageID, []byte(tt.body)
			if !equal(items[0], tt.want) {
				t.Errorf("Verify = %+v, want %+v", items[0], tt.want)
			}
		})
	}
}

func equal(a, b providers.Item) bool {
	return a.MessageID == b.MessageID && a.MessageType == b.MessageType && a.BizKey == b.BizKey && a.OrderingKey == b.OrderingKey &&
		a.EventTime.Equal(b.EventTime) && bytes.Equal(a.Body, b.Body)
}

func TestItems(t *testing.T) {
	for _, tt := range []struct {
		name, items, body string
		ids               []string
		bodies            []string
		want              providers.Reason
	}{
		{"in a member", "json:events", "{\"events\": [ {\"id\": 1 } ,\n{\"id\":\"b\"}]}", []string{"1", "b"}, []string{`{"id": 1 }`, `{"id":"b"}`}, ""},
		{"the body itself", "json:$", `[{"id":"a"}]`, []string{"a"}, []string{`{"id":"a"}`}, ""},
		{"one without an id", "json:events", `{"events":[{"id":"a"},{}]}`, nil, nil, providers.NoMessageID},
		{"none", "json:events", `{"events":[]}`, nil, nil, providers.MalformedBody},
		{"no array", "json:events", `{"events":{"id":"a"}}`, nil, nil, providers.MalformedBody},
		{"missing", "json:events", `{}`, nil, nil, providers.MalformedBody},
		{"twice", "json:events", `{"events":[{"id":"a"}],"events":[]}`, nil, nil, providers.MalformedBody},
		{"not JSON", "json:events", `{"events":[{"id":"a"}]`, nil, nil, providers.MalformedBody},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := configure(t, &inbox.Source{Provider: "none", Settings: []byte(`{"items": "` + tt.items + `", "message_id": "{json:id}"}`)})
			items, err := v.Verify(&providers.Request{Body: []byte(tt.body), Now: now})
			if reasonOf(err) != tt.want {
				t.Fatalf("Verify = %v, want %q", err, tt.want)
			}
			var ids, bodies []string
			for _, item := range items {
				ids, bodies = append(ids, item.MessageID), append(bodies, string(item.Body))
			}
			if !slices.Equal(ids, tt.ids) || !slices.Equal(bodies, tt.bodies) {
				t.Errorf("Verify = %q, %q, want %q, %q", ids, bodies, tt.ids, tt.bodies)
			}
		})
	}
}

// Bytes are verified as they are, whatever they are.
func TestAnyBody(t *testing.T) {
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	_, _ = w.Write([]byte(body))
	_ = w.Close()
	v := configure(t, signers["standard-webhooks v1"])
	for name, body := range map[string][]byte{
		"empty": {}, "NUL": []byte("a\x00b"), "not UTF-8": {0xff, 0xfe}, "form": []byte("a=1&a=2&b="), "XML": []byte("<a/>\r\n"), "gzip": zipped.Bytes(),
	} {
		r, err := v.Sign(providers.Draft{Now: now, Body: body})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		items, err := v.Verify(r)
		if err != nil || !bytes.Equal(items[0].Body, body) || items[0].MessageType != "" {
			t.Errorf("%s: Verify = %+v, %v", name, items, err)
		}
	}
}

func TestAnswer(t *testing.T) {
	answer := configure(t, signers["stripe"]).Answer()
	if answer.Status != 200 || answer.ContentType != "" || len(answer.Body) != 0 {
		t.Errorf("Answer = %+v, want 200 without a body", answer)
	}
	answer = configure(t, &inbox.Source{
		Provider: "none", Settings: []byte(`{"answer": {"status": 202, "content_type": "text/plain", "body": "[accepted]"}}`),
	}).Answer()
	if answer.Status != 202 || answer.ContentType != "text/plain" || string(answer.Body) != "[accepted]" {
		t.Errorf("Answer = %+v, want 202 with [accepted]", answer)
	}
}

// Requests of one source are verified side by side, and none sees another's values.
func TestVerifyConcurrently(t *testing.T) {
	v := configure(t, signers["stripe"])
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 50 {
				id := "evt_" + strings.Repeat("x", i+1)
				r, err := v.Sign(providers.Draft{Now: now, Body: []byte(`{"id":"` + id + `"}`), Forge: i%2 == 1})
				if err != nil {
					t.Error(err)
					return
				}
				items, err := v.Verify(r)
				if i%2 == 1 {
					if reasonOf(err) != providers.SignatureMismatch {
						t.Errorf("Verify a forged request = %v", err)
					}
				} else if err != nil || items[0].MessageID != id || items[0].MessageType != "" {
					t.Errorf("Verify = %+v, %v, want the id %s", items, err, id)
				}
			}
		})
	}
	wg.Wait()
}
