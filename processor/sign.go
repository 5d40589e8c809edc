package processor

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"hash"
	"strings"
	"sync"

	"github.com/inboxd/inboxd/inbox"
)

// signer signs with one secret of a handler, as Standard Webhooks has it:
// https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
type signer struct {
	macs sync.Pool // of *mac, so that the key's two hash blocks are computed once
}

// mac is a keyed hash and the room for its sum.
type mac struct {
	hash.Hash
	sum [sha256.Size]byte
}

// secretPrefix marks a Standard Webhooks secret; the rest is the key in base64.
const secretPrefix = "whsec_"

var errSecretFault = errors.New("a secret of the handler can't be opened or found; the API says why as its secret_error")

var errSecret = errors.New("a secret of the handler is not whsec_ and a key in base64")

// newSigner decodes the secret: "whsec_" and the key in base64, padded. It fails on anything else, an
// empty key included, with an error that doesn't show the secret.
func newSigner(secret inbox.Secret) (*signer, error) {
	encoded, ok := strings.CutPrefix(secret.Reveal(), secretPrefix)
	key, err := base64.StdEncoding.DecodeString(encoded)
	if !ok || err != nil || len(key) == 0 {
		return nil, errSecret
	}
	s := &signer{}
	s.macs.New = func() any { return &mac{Hash: hmac.New(sha256.New, key)} }
	return s, nil
}

// sign appends the value of webhook-signature to dst: for each signer "v1," and the base64 of
// HMAC-SHA256 over head and body; a space between two. head is "{webhook-id}.{webhook-timestamp}.", in
// which the id has no full stop, so that it can be read in one way only. A receiver takes the message if
// any signature is right; thus a secret can be rotated.
func sign(dst []byte, signers []*signer, head, body []byte) []byte {
	for i, s := range signers {
		if i > 0 {
			dst = append(dst, ' ')
		}
		m := s.macs.Get().(*mac)
		m.Reset()
		// A hash's Write never fails, says its documentation.
		_, _ = m.Write(head)
		_, _ = m.Write(body)
		dst = append(dst, "v1,"...)
		dst = base64.StdEncoding.AppendEncode(dst, m.Sum(m.sum[:0]))
		s.macs.Put(m)
	}
	return dst
}
