package inbox

import "time"

// Stats is how the inbox does now. No number of it takes a walk through everything: counts stop at a bound, and
// say so.
type Stats struct {
	At     time.Time     // the database's time
	Window time.Duration // rates and latencies are of so long before At

	Received Rate // messages stored
	Attempts Rate // sent to handlers, failed or not
	Failed   Rate // attempts that failed, expired leases included
	Ended    Rate // outcomes

	// Unfinished is all deliveries that have not ended, Backlog those of each status.
	Unfinished Count
	Backlog    map[Status]Count
	Handlers   []HandlerStats // by name
	Parking    []ParkingPlace
}

// Rate is how often something happened.
type Rate struct {
	PerMinute float64
	Estimated bool // there was more than was looked at: the rate of the latest, or told from numbers
}

// Count is how many there are.
type Count struct {
	N         int64
	AtLeast   bool // counting stopped here: there are as many or more
	Estimated bool // from PostgreSQL's statistics
}

// Add returns the sum.
func (c Count) Add(d Count) Count {
	return Count{N: c.N + d.N, AtLeast: c.AtLeast || d.AtLeast, Estimated: c.Estimated || d.Estimated}
}

// HandlerStats is what waits for a handler, and how it did within the window.
type HandlerStats struct {
	HandlerID    int64
	Handler      string
	Paused       bool
	Deleted      bool // what is left is about to be discarded
	Backlog      map[Status]Count
	OldestDue    time.Time // when the longest due delivery became due; zero if none is
	OldestParked time.Time // when the oldest message that is parked was received
	ExpiredLease Count     // PROCESSING although the lease has run out a while ago

	Done      Rate
	Discarded Rate
	Failed    Rate // attempts
	// EndToEnd is from received to done, without replays; Attempt is how long those took that succeeded.
	EndToEnd Percentiles
	Attempt  Percentiles
}

// Percentiles are of a sample; without one they are 0.
type Percentiles struct {
	Sample        int // how many
	P50, P95, P99 time.Duration
}

// The places where something stays until somebody acts.
const (
	PlaceParked         = "parked"          // deliveries that are MANUAL_REQUIRED
	PlacePaused         = "paused"          // deliveries that wait at a paused handler
	PlaceHandlerSecret  = "handler_secret"  // deliveries that can't be signed: a secret can't be opened or found
	PlaceHandlerDeleted = "handler_deleted" // deliveries that the leader has not discarded yet
	PlaceLeaseExpired   = "lease_expired"   // claims that the leader has not taken back yet
	PlaceUnrouted       = "unrouted"        // messages that no handler subscribed to
	PlaceSourceDisabled = "source_disabled" // its requests are answered 404 and leave no row
	PlaceSourceSecret   = "source_secret"   // its requests are answered 503 and leave no row
)

// ParkingPlace is where something stays until somebody acts.
type ParkingPlace struct {
	Place   string
	Handler string    // its name, if it is a handler's
	Source  string    // its name, if it is a source's
	Count   Count     // of a source that refuses: 0, since what it refused left no row
	Oldest  time.Time // of what was counted; zero where nobody knows
}

// System is what the instances and the database are at.
type System struct {
	At         time.Time
	PostgreSQL string // its version
	Schema     Schema
	Leader     Leader
	Instances  []Instance
	Tables     []Table
	// Oldest is the oldest snapshot that something holds: VACUUM removes nothing that is younger. Nil if none is.
	Oldest *Holder
}

// Schema tells whether the database is at what this build knows.
type Schema struct {
	Applied int64 // the latest migration that the database has
	Known   int64 // the latest of this build
}

// Leader is who leads, or led last.
type Leader struct {
	Owner     string // an instance; "" before the first
	Term      int64
	ExpiresAt time.Time // in the past if nobody leads
}

// Instance is one that leads or holds claims. Others leave no trace in the database.
type Instance struct {
	Owner   string
	Leading bool
	Claims  Count
}

// Table is a table of inboxd, or a partitioned one.
type Table struct {
	Name       string
	Rows       Count       // always estimated
	Bytes      int64       // with indexes and TOAST
	Until      time.Time   // where its partitions end; zero if it has none
	Partitions []Partition // by time
}

// Partition is a part of a table. inboxd makes no default partition; one that somebody made has no times.
type Partition struct {
	Name     string
	Default  bool
	From, To time.Time
	Rows     Count // always estimated
	Bytes    int64
}

// Holder is what keeps VACUUM from removing rows.
type Holder struct {
	Kind string        // "session", "prepared transaction" or "replication slot"
	Name string        // the session's application and process, the transaction's or the slot's name
	Age  int64         // transactions that were begun since
	Open time.Duration // how long its transaction is open; 0 where nobody knows
}
