package inbox

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"time"
)

// Role is what a token may do. Each one includes those before it.
type Role string

// The roles, the least first.
const (
	RoleRead    Role = "read"    // see everything but secrets and the audit
	RoleOperate Role = "operate" // act on deliveries; pause, resume and ping handlers
	RoleAdmin   Role = "admin"   // change sources, handlers and tokens; read the audit
)

// Roles returns all roles, the least first.
func Roles() []Role { return []Role{RoleRead, RoleOperate, RoleAdmin} }

// Includes reports whether the role may do what another may. One that is none of Roles includes nothing, and
// is included in nothing.
func (r Role) Includes(other Role) bool {
	mine, needed := slices.Index(Roles(), r), slices.Index(Roles(), other)
	return needed >= 0 && mine >= needed
}

// Scope is which sources and handlers a token is for, as globs of their names (path.Match).
type Scope struct {
	Sources  []string
	Handlers []string
}

// Everything is the scope that leaves nothing out.
func Everything() Scope { return Scope{Sources: []string{"*"}, Handlers: []string{"*"}} }

// Check refuses a scope that could let nothing through: an empty list, or a malformed glob.
func (s Scope) Check() error {
	for _, globs := range [][]string{s.Sources, s.Handlers} {
		if len(globs) == 0 {
			return errors.New("a token needs at least one glob of sources and one of handlers; * is all of them")
		}
		for _, glob := range globs {
			if _, err := path.Match(glob, ""); err != nil || glob == "" {
				return fmt.Errorf("%q is no glob as path.Match reads it, such as shop-*", glob)
			}
		}
	}
	return nil
}

// AllSources reports whether the scope leaves no source out.
func (s Scope) AllSources() bool { return slices.Contains(s.Sources, "*") }

// AllHandlers reports whether the scope leaves no handler out.
func (s Scope) AllHandlers() bool { return slices.Contains(s.Handlers, "*") }

// Everything reports whether the scope leaves nothing out.
func (s Scope) Everything() bool { return s.AllSources() && s.AllHandlers() }

// Source reports whether the source of that name is in the scope.
func (s Scope) Source(name string) bool { return matchesAny(s.Sources, name) }

// Handler reports whether the handler of that name is in the scope.
func (s Scope) Handler(name string) bool { return matchesAny(s.Handlers, name) }

// OperatorToken is a bearer token of the operators' API. Its text is known only to whoever made it.
type OperatorToken struct {
	ID        int64
	Name      string
	Role      Role
	Scope     Scope
	CreatedAt time.Time
	ExpiresAt time.Time // zero: never
	RevokedAt time.Time // zero while nobody has revoked it
}

// Valid reports whether the token is neither revoked nor expired. For a request the database's clock decides.
func (t *OperatorToken) Valid(now time.Time) bool {
	return t.RevokedAt.IsZero() && (t.ExpiresAt.IsZero() || now.Before(t.ExpiresAt))
}
