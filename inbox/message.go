package inbox

import (
	"bytes"
	"strconv"
	"time"
)

// Message is one event as it is stored. (SourceID, MessageID) is unique.
type Message struct {
	ID          int64     // number of the message; 0 until it is stored
	ReceivedAt  time.Time // the database's time of the commit's statement; zero until stored
	SourceID    int64
	MessageID   string    // the provider's id of the event, 1 to 512 bytes of UTF-8 without NUL
	MessageType string    // "" where the provider sends none
	EventTime   time.Time // when the provider says that it happened; zero if it doesn't say
	BizKey      string    // "" if the source has no business key
	OrderingKey string    // "" if the message belongs to no order
	ContentType string    // as received
	Headers     []byte    // the request's headers that are kept, as lines "Name: value\r\n"; see SecretLine
	Body        []byte    // the exact bytes
	BodyHash    [16]byte  // the first 16 bytes of the body's SHA-256
	Routes      []Route   // the handlers that subscribe; empty makes the message UNROUTED
}

// SecretLine begins the line of a message's headers that has the id of the secret that verified it. No header can have
// such a name, so it is not passed on; a column of its own would cost more on the way in.
const SecretLine = ":secret: "

// SecretID returns the id of the secret that verified a message with these headers; "" if that isn't known.
func SecretID(headers []byte) string {
	for line := range bytes.SplitSeq(headers, []byte("\r\n")) {
		if id, ok := bytes.CutPrefix(line, []byte(SecretLine)); ok {
			return string(id)
		}
	}
	return ""
}

// Route names one handler that gets a message.
type Route struct {
	HandlerID     int64
	MaxRetryCount int // copied into the delivery, so a later change of the handler's policy leaves it alone
}

// Stored tells what became of one message of a batch.
type Stored struct {
	ID        int64 // the message's number; for a duplicate the number of the first one
	Duplicate bool  // (source, message_id) was there already
	// DifferentBody says that a duplicate brought other bytes than the first. The provider gets the same
	// answer; operators get a metric.
	DifferentBody bool
}

// FormatMessage returns the public id of a message: its number.
func FormatMessage(id int64) string { return strconv.FormatInt(id, 10) }

// ParseMessage reads a public message id. It fails with ErrNotFound on anything that can't be one.
func ParseMessage(s string) (int64, error) {
	id, err := strconv.ParseInt(s, 10, 64)
	if err != nil || id <= 0 {
		return 0, ErrNotFound
	}
	return id, nil
}
