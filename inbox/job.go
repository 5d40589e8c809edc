package inbox

import "time"

// JobAction is what a job does to each delivery that its filter chooses.
type JobAction string

// The actions of jobs. The first three are for what is parked.
const (
	JobRetry   JobAction = "retry"
	JobDone    JobAction = "done"
	JobDiscard JobAction = "discard"
	JobReplay  JobAction = "replay"
)

// JobStatus is where a job stands.
type JobStatus string

// The statuses of jobs.
const (
	JobRunning   JobStatus = "running"
	JobEnded     JobStatus = "done" // it has come to the end
	JobCancelled JobStatus = "cancelled"
	JobFailed    JobStatus = "failed"
)

// Job acts on many deliveries: on all that its filter chose when it was created, from the newest message
// down. What comes, fails or ends later is left alone.
type Job struct {
	ID     int64
	Action JobAction
	// Filter chooses. Its Status is MANUAL_REQUIRED; of a replay DONE, DISCARDED, UNROUTED or DUPLICATE. Its Within is
	// what the author could reach when the job was created.
	Filter Filter
	// ToHandler is the only handler that a replay goes to; 0 is each that had the message or, where it reached
	// none, each that subscribes to it now.
	ToHandler int64
	Pace      int // deliveries per second at most; 0 is no limit
	By        Actor

	Status     JobStatus
	Error      string // why it failed, or why it skipped what the database refused
	CreatedAt  time.Time
	FinishedAt time.Time // zero while it runs
	Selected   int64     // chosen so far: moved or skipped
	Moved      int64
	Skipped    int64 // had moved on when their turn came, or were refused

	// Numbers of messages: it goes from Top down to about Bottom, and has dealt with all from Cursor up.
	Top, Bottom, Cursor int64
	Fence               int64         // the latest claim_seq at creation
	Wait                time.Duration // until the pace allows the next page, when the row was read
	Broken              bool          // this instance can't read its filter

	// Names of what the filter and ToHandler number.
	Source, Handler, ToHandlerName string
}

// Progress is how far a job has come, from 0 to 1, by position among the numbers of messages.
func (j *Job) Progress() float64 {
	if j.Status == JobEnded || j.Top <= j.Bottom {
		return 1
	}
	return float64(j.Top-max(j.Cursor, j.Bottom)) / float64(j.Top-j.Bottom)
}

// JobMessage is a message of which a job acts on deliveries.
type JobMessage struct {
	ID         int64
	SourceID   int64
	ReceivedAt time.Time
	Type       string
	Items      []JobItem
}

// JobItem is a delivery as it was chosen. It is only moved if it is still so.
type JobItem struct {
	HandlerID int64
	ClaimSeq  int64
	ReplayNo  int // of its latest run
}

// JobSelection is what a job acts on next, the newest message first. Messages may be none and the job go on,
// since a selection looks at a bounded number of rows.
type JobSelection struct {
	Messages []JobMessage
	Next     int64 // the cursor after them; 0 where there is nothing below
}

// JobPage is what a job does in one transaction.
type JobPage struct {
	Messages []JobMessage // with whole messages, so that a number says how far it has come
	Cursor   int64        // after them; 0 ends the job
	Refused  string       // if it is set, the messages are skipped, and this is why
}

// JobPlan is what a job would do: a dry run.
type JobPlan struct {
	Deliveries int
	AtLeast    bool // counting stopped at its bound: there may be more
	Groups     []JobGroup
}

// JobGroup is how many deliveries of a type a job would move at a handler.
type JobGroup struct {
	Handler     string
	MessageType string
	Deliveries  int
}

// JobRoom is how many deliveries a job may add to a handler without getting in the way of others.
type JobRoom struct {
	HandlerID int64
	Room      int
}
