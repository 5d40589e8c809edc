package inbox

// Actor is who changes something, and why. Every change of a source, handler, token or delivery takes one,
// and the audit keeps it.
type Actor struct {
	Name    string // of the token, or of the program that acted without one
	TokenID int64  // 0 for one that came without a token
	Reason  string // why, in the operator's words; may be empty
	Note    string // what else the next reader should know; may be empty
}
