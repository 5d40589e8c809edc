package api

import "github.com/inboxd/inboxd/inbox"

// Needs has the role of each operation, and whether it keeps to scopes.
func Needs() (roles map[string]inbox.Role, scoped map[string]bool) {
	roles, scoped = make(map[string]inbox.Role), make(map[string]bool)
	for operation, n := range needs {
		roles[operation], scoped[operation] = n.role, n.scoped
	}
	return roles, scoped
}

// Remembered is how many addresses a limiter of tries keeps in mind.
func (t *Tries) Remembered() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.addresses.young) + len(t.addresses.old)
}
