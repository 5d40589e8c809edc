package inbox_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/inboxd/inboxd/inbox"
)

func TestBackoff(t *testing.T) {
	b := inbox.Backoff{Base: time.Second, Cap: time.Hour}
	for _, test := range []struct {
		name       string
		backoff    inbox.Backoff
		retryCount int
		want       time.Duration
	}{
		{"first", b, 0, time.Second},
		{"second", b, 1, 2 * time.Second},
		{"below the cap", b, 11, 2048 * time.Second},
		{"at the cap", b, 12, time.Hour},
		{"far beyond it", b, 1000, time.Hour},
		{"beyond what shifting can do", b, math.MaxInt32, time.Hour},
		{"a cap as large as can be", inbox.Backoff{Base: time.Second, Cap: math.MaxInt64}, 63, math.MaxInt64},
		{"a base as large as can be", inbox.Backoff{Base: math.MaxInt64, Cap: math.MaxInt64}, 5, math.MaxInt64},
		{"base and cap equal", inbox.Backoff{Base: time.Minute, Cap: time.Minute}, 3, time.Minute},
	} {
		if got := test.backoff.Delay(test.retryCount); got != test.want {
			t.Errorf("%s: Delay(%d) = %s, want %s", test.name, test.retryCount, got, test.want)
		}
		for range 100 {
			got := test.backoff.Jittered(test.retryCount)
			if most := test.want + min(test.want/10, math.MaxInt64-test.want); got < test.want || got > most {
				t.Errorf("%s: Jittered(%d) = %s, want %s to %s", test.name, test.retryCount, got, test.want, most)
				break
			}
		}
	}
}

func TestSubscribes(t *testing.T) {
	for _, test := range []struct {
		sources, types []string
		source, typ    string
		want           bool
	}{
		{[]string{"*"}, []string{"*"}, "shop", "a/b.c", true},
		{[]string{"shop"}, []string{"*"}, "shop", "", true},
		{[]string{"shop"}, []string{"*"}, "shop2", "paid", false},
		{[]string{"a", "shop"}, []string{"x", "payment_intent.*"}, "shop", "payment_intent.succeeded", true},
		{[]string{"shop"}, []string{"payment_intent.*"}, "shop", "payment_intent", false},
		{[]string{"shop"}, []string{"payment_intent.*"}, "shop", "payment_intent.a.b", true},
		{[]string{"shop"}, []string{""}, "shop", "", true},
		{[]string{"shop"}, []string{""}, "shop", "paid", false},
		{[]string{"shop"}, []string{"[a-"}, "shop", "[a-", false},
		{[]string{"shop"}, nil, "shop", "paid", false},
	} {
		h := inbox.Handler{Sources: test.sources, MessageTypes: test.types}
		if got := h.Subscribes(test.source, test.typ); got != test.want {
			t.Errorf("%q %q: Subscribes(%q, %q) = %t, want %t", test.sources, test.types, test.source, test.typ, got, test.want)
		}
	}
}

func TestRouteKeepsPausedHandlers(t *testing.T) {
	s := inbox.Snapshot{Handlers: []*inbox.Handler{
		{ID: 1, Sources: []string{"*"}, MessageTypes: []string{"*"}, MaxRetryCount: 3},
		{ID: 2, Sources: []string{"*"}, MessageTypes: []string{"*"}, Paused: true},
		{ID: 3, Sources: []string{"other"}, MessageTypes: []string{"*"}},
	}}
	got := s.Route("shop", "paid")
	if fmt.Sprint(got) != fmt.Sprint([]inbox.Route{{HandlerID: 1, MaxRetryCount: 3}, {HandlerID: 2}}) {
		t.Errorf("Route = %+v, want handlers 1 and 2", got)
	}
}

func TestSecretIsNeverPrinted(t *testing.T) {
	secret := inbox.Secret("hunter2")
	source := inbox.Source{Secrets: []inbox.Secret{secret}}
	asJSON, err := json.Marshal(source)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		fmt.Sprint(secret), fmt.Sprintf("%v %+v %#v %s %q %x %d", secret, secret, secret, secret, secret, secret, secret),
		fmt.Sprintf("%v %+v %#v", source, source, source), string(asJSON), fmt.Errorf("a %w of %v", errors.New("x"), secret).Error(),
	} {
		if strings.Contains(text, "hunter2") || strings.Contains(text, "68756e74657232") {
			t.Errorf("printed %q", text)
		}
	}
	for text, want := range map[string]bool{"": true, " \t\n": true, "x": false} {
		if got := inbox.Secret(text).Blank(); got != want {
			t.Errorf("Secret(%q).Blank() = %t", text, got)
		}
	}
}

func TestPublicIDs(t *testing.T) {
	id := inbox.DeliveryID{Message: 12, Handler: 3}
	if got, err := inbox.ParseDelivery(id.String()); err != nil || got != id || id.String() != "12.3" {
		t.Errorf("ParseDelivery(%q) = %v, %v", id, got, err)
	}
	for _, text := range []string{"", "1", "1.", ".1", "a.b", "1.2.3", "-1.2", "0.1", "99999999999999999999.1"} {
		if got, err := inbox.ParseDelivery(text); !errors.Is(err, inbox.ErrNotFound) {
			t.Errorf("ParseDelivery(%q) = %v, %v, want ErrNotFound", text, got, err)
		}
	}
}
