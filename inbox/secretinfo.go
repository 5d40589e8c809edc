package inbox

import (
	"crypto/rand"
	"slices"
	"strings"
	"time"
)

// SecretInfo is what is known of a secret beside its text, and may be shown.
type SecretInfo struct {
	ID       string // unique among those of its source or handler; never used again
	Kind     SecretKind
	AddedAt  time.Time
	NotAfter time.Time // from then on it is no secret any more; zero for no end
	Secret   Secret    // whose info it is
}

// SecretKind says how a secret is stored.
type SecretKind string

// The kinds.
const (
	SecretSealed SecretKind = "sealed"
	SecretPlain  SecretKind = "plain" // by a release before sealing
	SecretEnv    SecretKind = "env"
	SecretFile   SecretKind = "file"
)

// NewSecretID returns a random id.
func NewSecretID() string { return strings.ToLower(rand.Text()[:10]) }

// RotateSecrets returns the secrets with next as the first of them and without an end. The others end after the
// overlap, unless they do sooner; with no overlap they are left out. One of them that is next is taken to the front.
func RotateSecrets(secrets []Secret, info []SecretInfo, next Secret, now time.Time, overlap time.Duration) ([]Secret, []SecretInfo) {
	info, end := slices.Clone(info), now.Add(overlap)
	for i := range info {
		switch {
		case info[i].Secret == next:
			info[i].NotAfter = time.Time{}
		case info[i].NotAfter.IsZero() || info[i].NotAfter.After(end):
			info[i].NotAfter = end
		}
	}
	rotated := []Secret{next}
	if overlap > 0 {
		rotated = append(rotated, slices.DeleteFunc(slices.Clone(secrets), func(s Secret) bool { return s == next })...)
	}
	return rotated, info
}

// DescribeSecrets returns the info of each secret, in their order: what is in known, by the secret's text, else a
// new id as of now.
func DescribeSecrets(secrets []Secret, known []SecretInfo, now time.Time) []SecretInfo {
	known = slices.Clone(known)
	described := make([]SecretInfo, len(secrets))
	for i, secret := range secrets {
		at := slices.IndexFunc(known, func(k SecretInfo) bool { return k.Secret == secret })
		if at < 0 {
			described[i] = SecretInfo{ID: NewSecretID(), AddedAt: now, Secret: secret}
			continue
		}
		described[i] = known[at]
		known = slices.Delete(known, at, at+1)
	}
	return described
}
