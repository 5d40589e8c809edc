package inbox

import "time"

// Token identifies one claim: the UUID that every write under the claim repeats.
type Token [16]byte

// Want asks for claims on one handler's deliveries.
type Want struct {
	HandlerID int64
	Free      int           // at most so many
	Bound     time.Time     // deliveries whose next_retry_time is before it are not looked at; zero is −∞
	Lease     time.Duration // how long the claim holds
}

// Claim is a processor's hold on a delivery.
type Claim struct {
	DeliveryID
	SourceID      int64
	Token         Token
	ClaimSeq      int64 // the fence: grows with each claim of a delivery and never goes back
	ReceivedAt    time.Time
	RetryCount    int
	MaxRetryCount int
	ReplayNo      int       // 0 for the first run, one more for each replay
	NextRetryTime time.Time // when it was due
}

// Class names why an attempt failed. It is a label of metrics, so the set is small and fixed.
type Class string

// The classes.
const (
	ClassStatus       Class = "status"        // an answer outside 2xx
	ClassTimeout      Class = "timeout"       // no answer within the handler's timeout
	ClassConnection   Class = "connection"    // no connection, or it broke
	ClassTLS          Class = "tls"           // the handler's certificate is not accepted
	ClassRefused      Class = "refused"       // the egress rules don't allow the address
	ClassRedirect     Class = "redirect"      // an answer 3xx; redirects are not followed
	ClassRequest      Class = "request"       // the request could not be built: the handler's URL is not usable
	ClassToken        Class = "token"         // the handler's token endpoint gave no token
	ClassLeaseExpired Class = "lease_expired" // the processor did not report within the lease
)

// Verdict is what an attempt means for its delivery.
type Verdict int

// The verdicts.
const (
	VerdictRelease   Verdict = iota // not sent: back as it was, the retry count unchanged
	VerdictDone                     // the handler took it
	VerdictRetry                    // try again after Delay while retries are left, else park it
	VerdictPermanent                // no retry can cure it: park it
)

// Result is what a processor reports about one claim.
type Result struct {
	Claim
	Verdict        Verdict
	Class          Class         // "" for VerdictDone and VerdictRelease
	Delay          time.Duration // VerdictRetry: from now to the next attempt
	ResponseStatus int           // 0 if there was no answer
	ResponseBody   []byte        // the first KB of a failed attempt's answer
	Duration       time.Duration // of the attempt
	Error          string        // at most 1 KB of UTF-8, without secrets and payload
}

// Recorded tells what a Result did.
type Recorded struct {
	Status Status // the delivery's new status; "" if Stale
	// Stale says that the claim was lost: the delivery was left alone, and the attempt is in the ledger as
	// stale.
	Stale bool
}

// Backlog is what waits for one handler.
type Backlog struct {
	HandlerID int64
	Pending   int           // PENDING or FAILED, counted up to the cap
	OldestAge time.Duration // how long the longest due one has been due; 0 if none is due
	Parked    int           // MANUAL_REQUIRED, counted up to the cap
}
