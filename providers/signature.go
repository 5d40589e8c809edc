package providers

import (
	"bytes"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"strings"
	"sync"

	"golang.org/x/text/unicode/norm"
)

// maxCandidates is how many signatures one request may carry. Senders put one for each secret that is
// being rotated; without a bound a header full of signatures would cost an Ed25519 check each.
const maxCandidates = 32

// pair is one item of a signature such as t=1492774577,v1=5257a8….
type pair struct{ name, value string }

// parse appends the pairs of text. It reports false only if the sheet is strict and text is anything but
// pairs.
func (p pairsSpec) parse(pairs []pair, text string) ([]pair, bool) {
	for item := range strings.SplitSeq(text, p.between) {
		if p.strict {
			if strings.Count(item, p.within) != 1 {
				return pairs, false
			}
		} else {
			item = strings.TrimSpace(item)
		}
		if name, value, ok := strings.Cut(item, p.within); ok {
			pairs = append(pairs, pair{name, value})
		}
	}
	return pairs, true
}

// encoding is how bytes stand in a signature.
type encoding struct {
	decode func(c *call, to []byte, text string) ([]byte, bool) // appends
	encode func([]byte) string
}

var encodings = map[string]encoding{
	"hex": {decodeHex, hex.EncodeToString},
	// Of senders whose libraries compare the text: upper case never comes from them.
	"hex-lower": {
		func(c *call, to []byte, text string) ([]byte, bool) {
			if strings.ContainsAny(text, "ABCDEF") {
				return to, false
			}
			return decodeHex(c, to, text)
		},
		hex.EncodeToString,
	},
	"base64": {
		func(c *call, to []byte, text string) ([]byte, bool) {
			// The decoder would skip line ends.
			if strings.ContainsAny(text, "\r\n") {
				return to, false
			}
			c.scratch = append(c.scratch[:0], text...)
			to, err := base64.StdEncoding.Strict().AppendDecode(to, c.scratch)
			return to, err == nil
		},
		base64.StdEncoding.EncodeToString,
	},
	// Of tokens, which stand as they are.
	"": {
		func(_ *call, to []byte, text string) ([]byte, bool) { return append(to, text...), true },
		func(token []byte) string { return string(token) },
	},
}

func decodeHex(c *call, to []byte, text string) ([]byte, bool) {
	c.scratch = append(c.scratch[:0], text...)
	to, err := hex.AppendDecode(to, c.scratch)
	return to, err == nil
}

var hashes = map[string]func() hash.Hash{"sha1": sha1.New, "sha256": sha256.New, "sha512": sha512.New}

// hmacKeys says how the text of a secret becomes the key of an HMAC.
var hmacKeys = map[string]func(secret string) ([]byte, error){
	"utf8": func(secret string) ([]byte, error) { return []byte(secret), nil },
	// EasyPost's libraries normalise the secret before they use it.
	"utf8-nfkd": func(secret string) ([]byte, error) { return norm.NFKD.Bytes([]byte(secret)), nil },
	"hex": func(secret string) ([]byte, error) {
		key, err := hex.DecodeString(secret)
		if err != nil || len(key) == 0 {
			return nil, errors.New("is not hex")
		}
		return key, nil
	},
	"base64": base64Key,
	// Standard Webhooks 1.0.0: base64 behind whsec_, which may be missing.
	"whsec-base64": func(secret string) ([]byte, error) {
		key, err := base64Key(strings.TrimPrefix(secret, "whsec_"))
		if err != nil {
			return nil, errors.New("is not base64, with or without whsec_ in front; whpk_ and whsk_ are keys of another variant")
		}
		return key, nil
	},
}

func base64Key(secret string) ([]byte, error) {
	key, err := base64.StdEncoding.DecodeString(secret)
	if err != nil || len(key) == 0 {
		return nil, errors.New("is not base64 (standard alphabet, padded)")
	}
	return key, nil
}

// scheme checks and makes signatures with a source's keys.
type scheme interface {
	// matches reports whether one of c.candidates is authentic, and by which key (c.key), or why it can't tell.
	matches(c *call) Reason
	// sign returns the signature that the first key makes or, forged, one that no key of the source makes.
	sign(c *call, forged bool) ([]byte, error)
}

// hmacScheme is an HMAC over the signed bytes.
type hmacScheme struct {
	hash   func() hash.Hash
	signed func(*call, io.Writer) bool
	keys   []*sync.Pool // for each secret, hash states with the key already in them
}

func newHMAC(hash func() hash.Hash, keys [][]byte, signed func(*call, io.Writer) bool) *hmacScheme {
	s := &hmacScheme{hash: hash, signed: signed}
	for _, key := range keys {
		s.keys = append(s.keys, &sync.Pool{New: func() any { return hmac.New(hash, key) }})
	}
	return s
}

func (s *hmacScheme) matches(c *call) Reason {
	for i, states := range s.keys {
		mac := states.Get().(hash.Hash)
		mac.Reset()
		ok := s.signed(c, mac)
		c.sum = mac.Sum(c.sum[:0])
		states.Put(mac)
		if !ok {
			return SignedPartMissing
		}
		for _, candidate := range c.candidates {
			if hmac.Equal(candidate, c.sum) {
				c.key = i
				return ""
			}
		}
	}
	return SignatureMismatch
}

func (s *hmacScheme) sign(c *call, forged bool) ([]byte, error) {
	mac := s.keys[0].New().(hash.Hash)
	if forged {
		mac = hmac.New(s.hash, []byte(rand.Text()))
	}
	if !s.signed(c, mac) {
		return nil, errSignedPart
	}
	return mac.Sum(nil), nil
}

// ed25519Key is a public key and, where the source has it, the private one.
type ed25519Key struct {
	public  ed25519.PublicKey
	private ed25519.PrivateKey
}

// ed25519Keys says how the text of a secret becomes a key.
var ed25519Keys = map[string]func(secret string) (ed25519Key, error){
	// Standard Webhooks 1.0.0: whpk_ and the public key, or whsk_ and the private one (its seed, or seed
	// and public key).
	"whpk-base64": func(secret string) (ed25519Key, error) {
		if text, ok := strings.CutPrefix(secret, "whpk_"); ok {
			if key, err := base64Key(text); err == nil && len(key) == ed25519.PublicKeySize {
				return ed25519Key{public: key}, nil
			}
		}
		if text, ok := strings.CutPrefix(secret, "whsk_"); ok {
			key, err := base64Key(text)
			if err == nil && (len(key) == ed25519.SeedSize || len(key) == ed25519.PrivateKeySize) {
				private := ed25519.NewKeyFromSeed(key[:ed25519.SeedSize])
				public := private.Public().(ed25519.PublicKey)
				if len(key) == ed25519.SeedSize || public.Equal(ed25519.PublicKey(key[ed25519.SeedSize:])) {
					return ed25519Key{public, private}, nil
				}
			}
		}
		return ed25519Key{}, errors.New("is not whpk_ and the base64 of an Ed25519 public key (32 bytes), nor whsk_ and a private one")
	},
}

// ed25519Scheme is an Ed25519 signature of the signed bytes.
type ed25519Scheme struct {
	signed func(*call, io.Writer) bool
	keys   []ed25519Key
}

func (s *ed25519Scheme) message(c *call) ([]byte, bool) {
	var message bytes.Buffer
	ok := s.signed(c, &message)
	return message.Bytes(), ok
}

func (s *ed25519Scheme) matches(c *call) Reason {
	message, ok := s.message(c)
	if !ok {
		return SignedPartMissing
	}
	for i, key := range s.keys {
		for _, candidate := range c.candidates {
			if ed25519.Verify(key.public, message, candidate) {
				c.key = i
				return ""
			}
		}
	}
	return SignatureMismatch
}

func (s *ed25519Scheme) sign(c *call, forged bool) ([]byte, error) {
	private := s.keys[0].private
	if forged {
		_, private, _ = ed25519.GenerateKey(nil) // crypto/rand never fails
	}
	if private == nil {
		return nil, errors.New("signing needs the private key: put whsk_… first among the source's secrets")
	}
	message, ok := s.message(c)
	if !ok {
		return nil, errSignedPart
	}
	return ed25519.Sign(private, message), nil
}

// tokenScheme is a token that the request carries as it is.
type tokenScheme struct{ tokens [][]byte }

func (s *tokenScheme) matches(c *call) Reason {
	for i, token := range s.tokens {
		for _, candidate := range c.candidates {
			if subtle.ConstantTimeCompare(candidate, token) == 1 {
				c.key = i
				return ""
			}
		}
	}
	return SignatureMismatch
}

func (s *tokenScheme) sign(_ *call, forged bool) ([]byte, error) {
	if forged {
		return []byte(rand.Text()), nil
	}
	return s.tokens[0], nil
}

var errSignedPart = errors.New("a part of the signed bytes is missing: the sample's headers don't set it")
