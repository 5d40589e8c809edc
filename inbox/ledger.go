package inbox

import "time"

// LedgerFilter says which rows of a ledger a list holds. Zero values don't filter.
type LedgerFilter struct {
	SourceID       int64
	HandlerID      int64
	Message        int64     // its number
	Class          Class     // of attempts only
	Result         Status    // of outcomes only
	ResponseStatus int       // the handler's answer
	From, To       time.Time // finished at From or later, before To
	Within         *Reach
}

// LedgerPosition is where a page of a ledger ended; zero is the beginning.
type LedgerPosition struct {
	FinishedAt time.Time
	DeliveryID
	ClaimSeq int64
}

// LedgerPage is one page of a ledger, the latest first.
type LedgerPage[T any] struct {
	Items []T
	// Next is the position that the following page continues after; zero where the list has ended. Items may
	// be few or none and the list go on, since a page looks at a bounded number of rows.
	Next LedgerPosition
}

// AttemptEntry is a failed attempt, with whose it was.
type AttemptEntry struct {
	DeliveryID
	Handler string // its name
	Source  string // its name
	Attempt
}

// OutcomeEntry tells how a delivery ended, or that a message reached no handler: then the handler is 0.
type OutcomeEntry struct {
	DeliveryID
	Handler    string // its name
	Source     string // its name
	ReceivedAt time.Time
	ClaimedAt  time.Time // of the claim that ended it; zero where none did
	DupOf      int64     // DUPLICATE: the message that has the business key
	Outcome
}
