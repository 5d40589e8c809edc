// Package seal encrypts short texts for storage, with AES-256-GCM under keys that have ids. The first key of
// a ring seals, all of them open, so that a key is replaced by putting a new one in front.
package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// Prefix begins every sealed text: sealed:v1:{key id}:{base64 of nonce and ciphertext}.
const Prefix = "sealed:"

const version = Prefix + "v1:"

// keySize is that of AES-256.
const keySize = 32

var keyID = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,32}$`)

// The errors of Seal and Open. None of them, wrapped or not, repeats a key or a text.
var (
	ErrNoKey      = errors.New("there is no key to seal with")
	ErrUnknownKey = errors.New("sealed under a key that is not in the ring")
	ErrBroken     = errors.New("the sealed text was changed, moved, or sealed under another key of this id")
)

// Keyring is an ordered set of keys. The zero value and nil hold none: they seal and open nothing.
type Keyring struct{ keys []key }

type key struct {
	id   string
	aead cipher.AEAD
}

// Parse reads "id:base64[,id:base64…]", each key 32 bytes. An empty text is an empty ring. Its errors name
// an entry by its position, since what stands where an id belongs may be a key.
func Parse(text string) (*Keyring, error) {
	ring := &Keyring{}
	if strings.TrimSpace(text) == "" {
		return ring, nil
	}
	for i, entry := range strings.Split(text, ",") {
		id, encoded, ok := strings.Cut(strings.TrimSpace(entry), ":")
		if !ok || !keyID.MatchString(id) {
			return nil, fmt.Errorf("key %d is not id:base64, with an id of 1 to 32 letters, digits, dots, - and _", i+1)
		}
		if ring.find(id) != nil {
			return nil, fmt.Errorf("key %d has the id of another one", i+1)
		}
		raw, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil || len(raw) != keySize {
			return nil, fmt.Errorf("key %d is not the base64 of %d bytes", i+1, keySize)
		}
		block, err := aes.NewCipher(raw)
		if err != nil {
			return nil, fmt.Errorf("key %d can't be used", i+1)
		}
		aead, err := cipher.NewGCM(block)
		if err != nil {
			return nil, fmt.Errorf("key %d can't be used", i+1)
		}
		ring.keys = append(ring.keys, key{id, aead})
	}
	return ring, nil
}

// NewKey returns an entry for Parse with a random key.
func NewKey(id string) (string, error) {
	if !keyID.MatchString(id) {
		return "", errors.New("an id has 1 to 32 letters, digits, dots, - and _")
	}
	var raw [keySize]byte
	_, _ = rand.Read(raw[:]) // never fails
	return id + ":" + base64.StdEncoding.EncodeToString(raw[:]), nil
}

// Empty reports whether the ring can't seal.
func (r *Keyring) Empty() bool { return r == nil || len(r.keys) == 0 }

// Sealed reports whether the text claims to be sealed.
func Sealed(text string) bool { return strings.HasPrefix(text, Prefix) }

// Current reports whether the text is sealed under the first key.
func (r *Keyring) Current(text string) bool {
	return !r.Empty() && strings.HasPrefix(text, version+r.keys[0].id+":")
}

// Seal encrypts the text under the first key, bound to a context: only the same one opens it, so a sealed
// text that is copied to another place is of no use there. It fails with ErrNoKey alone.
func (r *Keyring) Seal(text, context string) (string, error) {
	if r.Empty() {
		return "", ErrNoKey
	}
	k := r.keys[0]
	head := version + k.id + ":"
	nonce := make([]byte, k.aead.NonceSize(), k.aead.NonceSize()+len(text)+k.aead.Overhead())
	_, _ = rand.Read(nonce) // never fails; 96 random bits are for 2^32 texts a key, NIST SP 800-38D section 8.3
	sealed := k.aead.Seal(nonce, nonce, []byte(text), []byte(head+context))
	return head + base64.StdEncoding.EncodeToString(sealed), nil
}

// Open decrypts what Seal made in the same context. It fails with ErrUnknownKey or ErrBroken.
func (r *Keyring) Open(sealed, context string) (string, error) {
	rest, ok := strings.CutPrefix(sealed, version)
	id, encoded, found := strings.Cut(rest, ":")
	if !ok || !found || !keyID.MatchString(id) {
		return "", ErrBroken
	}
	k := r.find(id)
	if k == nil {
		return "", fmt.Errorf("%w: %s", ErrUnknownKey, id)
	}
	raw, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil || len(raw) < k.aead.NonceSize() {
		return "", ErrBroken
	}
	nonce, ciphertext := raw[:k.aead.NonceSize()], raw[k.aead.NonceSize():]
	text, err := k.aead.Open(nil, nonce, ciphertext, []byte(version+id+":"+context))
	if err != nil {
		return "", ErrBroken
	}
	return string(text), nil
}

func (r *Keyring) find(id string) *key {
	if r == nil {
		return nil
	}
	for i := range r.keys {
		if r.keys[i].id == id {
			return &r.keys[i]
		}
	}
	return nil
}
