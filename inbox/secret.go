package inbox

import (
	"fmt"
	"strings"
)

// Secret is a key or token that must never be printed: every way of formatting or marshalling it gives
// "***". Reveal is the one way to its text.
type Secret string

// masked is what a Secret prints as.
const masked = "***"

// Reveal returns the secret's text, for the code that computes with it.
func (s Secret) Reveal() string { return string(s) }

// Blank reports whether the secret is empty or only white space: it must verify nothing.
func (s Secret) Blank() bool { return strings.TrimSpace(string(s)) == "" }

// Reference reports whether the text isn't the secret but says where it is: env:NAME or file:/path.
func (s Secret) Reference() bool {
	return strings.HasPrefix(string(s), "env:") || strings.HasPrefix(string(s), "file:")
}

// String returns "***".
func (Secret) String() string { return masked }

// Format prints "***" for every verb, %x and %#v included.
func (Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(masked)) }

// MarshalText returns "***", so that a struct that is logged or encoded as JSON gives nothing away.
func (Secret) MarshalText() ([]byte, error) { return []byte(masked), nil }
