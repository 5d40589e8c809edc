package inbox

import "time"

// Filter says which messages or deliveries a list holds. Zero values don't filter.
type Filter struct {
	// Status is that of the message, or of the delivery where deliveries are listed or HandlerID is set.
	Status      Status
	SourceID    int64
	HandlerID   int64
	MessageType string // exact
	MessageID   string
	BizKey      string
	OrderingKey string
	From, To    time.Time // received at From or later, before To
	Within      *Reach

	// Of deliveries only. One failed attempt of the delivery has both; a ResponseStatus below 300, which no
	// failed attempt has, is that of the answer that ended the delivery.
	ErrorClass     Class
	ResponseStatus int
}

// Page is one page of a list, newest first.
type Page[T any] struct {
	Items []T
	// Next is the position that the following page continues after; zero where the list has ended.
	// Items may be few or none and the list go on, since a page looks at a bounded number of rows.
	Next DeliveryID
}

// MessageState is a message as lists show it, and its one status. Headers and Body are only filled where
// one message is read.
type MessageState struct {
	Message
	Source     string // its name
	BodySize   int
	Status     Status
	Discarded  bool  // a delivery ended as DISCARDED
	DupOf      int64 // DUPLICATE: the message that has the business key
	CameToNone bool  // it reached no handler when it came; a replay may have brought it to some since
	Deliveries []DeliveryState
}

// DeliveryState is a delivery, unfinished or ended, with what names its message.
type DeliveryState struct {
	DeliveryID
	SourceID      int64
	Handler       string // name of the handler; DeliveryID.Handler is its number
	Source        string
	MessageID     string
	MessageType   string
	BizKey        string
	OrderingKey   string
	ReceivedAt    time.Time
	Status        Status
	RetryCount    int
	MaxRetryCount int
	NextRetryTime time.Time // zero where no attempt is due
	ClaimSeq      int64
	ClaimedAt     time.Time
	LeaseUntil    time.Time
	Owner         string
	ReplayNo      int
	LastError     string

	// Of an ended one.
	FinishedAt     time.Time
	ResponseStatus int
	Duration       time.Duration
	DupOf          int64
}

// DeliveryDetail is a delivery with its ledgers, oldest first.
type DeliveryDetail struct {
	DeliveryState
	Attempts []Attempt
	Outcomes []Outcome
}

// Attempt is a row of the ledger of failed attempts.
type Attempt struct {
	FinishedAt     time.Time
	ClaimSeq       int64
	ReplayNo       int
	RetryCount     int // before the attempt
	Stale          bool
	ResponseStatus int
	Duration       time.Duration // 0 where nobody knows
	Class          Class
	Error          string
	Owner          string
	ResponseBody   []byte
}

// Outcome tells how a delivery ended, once for each time that it did.
type Outcome struct {
	FinishedAt     time.Time
	Result         Status
	ReplayNo       int
	ClaimSeq       int64
	Attempts       int
	MaxRetryCount  int
	ResponseStatus int
	Duration       time.Duration
	LastError      string
}

// MessageStatus returns the one status of a message whose deliveries, at least one, have these, and
// whether one of them was discarded. A status of no delivery (UNROUTED, DUPLICATE) only counts alone.
func MessageStatus(deliveries ...Status) (status Status, discarded bool) {
	rank := len(Statuses())
	for _, d := range deliveries {
		if d == Discarded {
			d, discarded = Done, true
		}
		for i, s := range Statuses() {
			if s == d && i < rank {
				status, rank = s, i
			}
		}
	}
	return status, discarded
}

// ConflictError is an ErrConflict that can be shown: it says what stands in the way.
type ConflictError struct{ Detail string }

// Error returns the detail.
func (e *ConflictError) Error() string { return e.Detail }

// Unwrap returns ErrConflict.
func (e *ConflictError) Unwrap() error { return ErrConflict }
