package inbox

import "errors"

// The errors that a caller can act on. Compare with errors.Is.
var (
	// ErrRefused: the database refuses this row for what is in it (SQLSTATE class 22 or 23, or a limit of
	// an index). Trying again can't help; the other rows of the batch are fine.
	ErrRefused = errors.New("the row was refused")

	// ErrStaleSnapshot: sources or handlers have changed since the routes were computed. Nothing was
	// written; reload and route again.
	ErrStaleSnapshot = errors.New("sources or handlers have changed")

	// ErrUnavailable: the database is away, read-only or overloaded, or the commit's result is unknown.
	// Whoever sent the message has to send it again.
	ErrUnavailable = errors.New("the database is unavailable")

	// ErrNotFound: there is no such row.
	ErrNotFound = errors.New("not found")

	// ErrConflict: the row has moved on since it was read, or what was asked doesn't fit its status.
	ErrConflict = errors.New("conflict")

	// ErrNoSealingKey: a secret was to be stored, and this instance has no key to seal it with.
	ErrNoSealingKey = errors.New("there is no key to seal secrets with")

	// ErrNameTaken: another source, handler or token has this name.
	ErrNameTaken = errors.New("the name is taken")
)

// InvalidError is a field of what an operator gave that can't be used. It repeats no secret.
type InvalidError struct {
	Field  string // as the API has it, such as credentials.headers[0].name
	Detail string
}

// Error names the field.
func (e *InvalidError) Error() string { return e.Field + " " + e.Detail }
