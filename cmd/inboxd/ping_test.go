package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strings"
	"testing"

	"github.com/inboxd/inboxd/api"
)

// TestPing pings from an instance that processes nothing: the ping is signed and says what it is, its answer is told
// whatever it is, the egress rules hold, and nothing is stored.
func TestPing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.start(t, func(c *gatewayConfig) {
		c.Settings.Roles = []string{"admin"}
		c.Settings.EgressDeny = []string{"127.0.0.2"}
	})
	status := http.StatusOK
	var got http.Header
	var sent []byte
	handler := newDownstream(t, func(rw http.ResponseWriter, r *http.Request, body []byte) {
		got, sent = r.Header.Clone(), body
		rw.WriteHeader(status)
		_, _ = rw.Write([]byte("seen " + strings.Repeat("x", 2000)))
	})
	var created api.CreatedHandler
	i.call(t, http.MethodPost, "/handlers", map[string]any{"name": "books", "url": handler.URL, "sources": []string{"*"}, "paused": true}, &created)

	var ping api.Ping
	i.call(t, http.MethodPost, "/handlers/books/ping", nil, &ping)
	if !ping.OK || ping.ResponseStatus == nil || *ping.ResponseStatus != 200 || ping.Class != "" || ping.Error != "" ||
		!strings.HasPrefix(ping.ResponseBody, "seen x") || len(ping.ResponseBody) != 1024 || ping.Duration == "0s" {
		t.Errorf("a ping = %+v", ping)
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(created.Secret, "whsec_"))
	if err != nil {
		t.Fatal(err)
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte("msg_0." + got.Get("Webhook-Timestamp") + "." + string(sent)))
	if want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)); got.Get("Webhook-Signature") != want {
		t.Errorf("webhook-signature = %q, want %q", got.Get("Webhook-Signature"), want)
	}
	if got.Get("Inbox-Test") != "1" || got.Get("Webhook-Id") != "msg_0" || string(sent) != `{"type":"inboxd.ping"}` {
		t.Errorf("sent %s with %v", sent, got)
	}

	status, ping = http.StatusTeapot, api.Ping{}
	i.call(t, http.MethodPost, "/handlers/books/ping", nil, &ping)
	if ping.OK || ping.ResponseStatus == nil || *ping.ResponseStatus != 418 || ping.Class != "status" || ping.Error != "answered 418" {
		t.Errorf("a ping of a teapot = %+v", ping)
	}

	// The rules came after the handler.
	w.exec(t, `UPDATE handler SET url = 'http://127.0.0.2:1/'`)
	ping = api.Ping{}
	i.call(t, http.MethodPost, "/handlers/books/ping", nil, &ping)
	if ping.OK || ping.ResponseStatus != nil || ping.Class != "refused" || !strings.Contains(ping.Error, "deny list") {
		t.Errorf("a ping that the egress rules refuse = %+v", ping)
	}
	if n := w.count(t, `SELECT (SELECT count(*) FROM inbox_message) + (SELECT count(*) FROM attempt) + (SELECT count(*) FROM outcome)`); n != 0 {
		t.Errorf("%d rows were stored", n)
	}
	_, err = operators{url: i.admin, token: i.token}.call(t.Context(), http.MethodPost, "/handlers/nobody/ping", nil, nil)
	if err == nil || !strings.Contains(err.Error(), "nobody") {
		t.Errorf("a ping of nobody = %v", err)
	}
}
