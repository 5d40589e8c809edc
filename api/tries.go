package api

import (
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// What an address may get wrong, unless Config says something else: a few in a row, as of somebody who pastes the
// wrong token, then one every two seconds.
const (
	triesBurst    = 20
	triesInterval = 2 * time.Second
)

// remembered is how many addresses, and how many valid tokens, are kept in mind at least; it is never more than
// twice as many.
const remembered = 10_000

// Tries limits how often an address may come with an unknown token. A token that was valid lately is never held
// up, so that nobody behind the same proxy as a guesser is locked out.
type Tries struct {
	burst    int
	interval time.Duration

	mu        sync.Mutex // guards what follows
	addresses recent[netip.Prefix, *rate.Limiter]
	valid     recent[[32]byte, struct{}] // hashes of tokens
}

// NewTries returns a limit of so many failures at once, and then one each interval. Each address counts for
// itself.
func NewTries(burst int, interval time.Duration) *Tries {
	return &Tries{burst: burst, interval: interval}
}

// DefaultTries returns the limit that is good for everybody.
func DefaultTries() *Tries { return NewTries(triesBurst, triesInterval) }

// begin is called before a token is looked up. It returns how long to wait instead, or what to call with how
// the look-up ended.
func (t *Tries) begin(address netip.Prefix, hash [32]byte) (wait time.Duration, end func(valid, failed bool)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.valid.get(hash); ok {
		return 0, func(valid, failed bool) {
			if failed {
				t.mu.Lock()
				defer t.mu.Unlock()
				t.valid.drop(hash)
			}
		}
	}
	limiter, ok := t.addresses.get(address)
	if !ok {
		limiter = rate.NewLimiter(rate.Every(t.interval), t.burst)
		t.addresses.put(address, limiter)
	}
	// The try counts before it is made, so that many at once are as few as many in a row.
	now := time.Now()
	try := limiter.ReserveN(now, 1)
	if wait := try.DelayFrom(now); wait > 0 {
		try.CancelAt(now)
		return wait, nil
	}
	return 0, func(valid, failed bool) {
		if !failed {
			try.CancelAt(now)
		}
		if valid {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.valid.put(hash, struct{}{})
		}
	}
}

// clientAddress is whom a try is counted for: an IPv4 address, or the network of an IPv6 address, of which
// everybody has as many as they like. Forwarding headers are whatever the client writes, so they don't count.
func clientAddress(r *http.Request) netip.Prefix {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	address, err := netip.ParseAddr(host)
	if err != nil {
		return netip.Prefix{} // a listener that has no addresses
	}
	address = address.Unmap().WithZone("")
	bits := 64
	if address.Is4() {
		bits = 32
	}
	network, _ := address.Prefix(bits) // both lengths fit
	return network
}

// recent is a map that forgets what was not used lately: it keeps the last `remembered` keys at least, and twice
// as many at most.
type recent[K comparable, V any] struct{ young, old map[K]V }

func (m *recent[K, V]) get(key K) (V, bool) {
	if value, ok := m.young[key]; ok {
		return value, true
	}
	value, ok := m.old[key]
	if ok {
		m.put(key, value)
	}
	return value, ok
}

func (m *recent[K, V]) put(key K, value V) {
	if len(m.young) >= remembered || m.young == nil {
		m.young, m.old = make(map[K]V), m.young
	}
	m.young[key] = value
}

func (m *recent[K, V]) drop(key K) {
	delete(m.young, key)
	delete(m.old, key)
}
