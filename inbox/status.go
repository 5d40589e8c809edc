package inbox

import (
	"fmt"
	"strings"
)

// Status is where a delivery stands. The first five are those of a delivery that is not finished, the
// others those of an outcome.
type Status string

// The statuses, in the order in which a message shows the first that any of its deliveries has.
const (
	ManualRequired Status = "MANUAL_REQUIRED" // parked: no retry is left, or the failure is permanent
	Processing     Status = "PROCESSING"      // claimed
	Failed         Status = "FAILED"          // an attempt failed; the next is due at next_retry_time
	Pending        Status = "PENDING"         // not tried yet, or retried by an operator
	Waiting        Status = "WAITING"         // behind an earlier message of its lane
	Done           Status = "DONE"
	Discarded      Status = "DISCARDED" // given up by an operator, or its handler was deleted
	Duplicate      Status = "DUPLICATE" // another message is the same business fact
	Unrouted       Status = "UNROUTED"  // no handler subscribed
)

// Statuses lists every status.
func Statuses() []Status {
	return []Status{ManualRequired, Processing, Failed, Pending, Waiting, Done, Discarded, Duplicate, Unrouted}
}

// Finished reports whether a delivery of this status has ended: it is a row of outcome.
func (s Status) Finished() bool {
	switch s {
	case Done, Discarded, Duplicate, Unrouted:
		return true
	}
	return false
}

// DeliveryID identifies one message on its way to one handler.
type DeliveryID struct {
	Message int64
	Handler int64
}

// String returns the public id, "{message}.{handler}".
func (d DeliveryID) String() string { return fmt.Sprintf("%d.%d", d.Message, d.Handler) }

// ParseDelivery reads a public delivery id. It fails with ErrNotFound on anything that can't be one.
func ParseDelivery(s string) (DeliveryID, error) {
	message, handler, ok := strings.Cut(s, ".")
	if !ok {
		return DeliveryID{}, ErrNotFound
	}
	m, err := ParseMessage(message)
	if err != nil {
		return DeliveryID{}, err
	}
	h, err := ParseMessage(handler)
	if err != nil {
		return DeliveryID{}, err
	}
	return DeliveryID{Message: m, Handler: h}, nil
}
