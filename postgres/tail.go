package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/inboxd/inboxd/inbox"
)

// The tail tells what has become visible since a snapshot of PostgreSQL. Numbers and times are given before the
// commit, so "everything after the last one" would lose what a transaction commits late. What a snapshot doesn't show and a
// later one does is exactly what was committed between the two, whenever it was written.
//
// No index has the transaction of a row, so rows are looked at from a mark on: a number and a time that every transaction
// the snapshot doesn't show has begun after. Marks are a second or two old; a transaction that has been open for longer
// is kept with a mark of its own, and what it may have written is looked for, once, when it has ended.
//
// PostgreSQL shows a role its own transactions; those of other roles, which inboxd doesn't need, only to members of
// pg_read_all_stats. What another role commits later than tailSlack after it began can be missed without.

// tailSlack is how long after its begin a transaction is sure to be listed by PostgreSQL.
const tailSlack = time.Second

// tailStep is how many rows of a table one look goes through.
const tailStep = 2_000

// tailMark is a point that every transaction which began at At or later is after: its rows have higher numbers
// and no earlier times.
type tailMark struct {
	At time.Time `json:"t"`
	ID int64     `json:"n"`
}

// openTransaction is one that was open when a snapshot was taken and began before the snapshot's mark.
type openTransaction struct {
	PID   int32     `json:"p"`
	Began time.Time `json:"b"`
	Mark  tailMark  `json:"m"`

	wrote bool // when it was listed
}

// tailView is a snapshot, and where to look for what it doesn't show: from the mark on, and from the mark of each
// open transaction.
type tailView struct {
	Snapshot string            `json:"s"`
	Mark     tailMark          `json:"m"`
	Young    tailMark          `json:"y"` // becomes the mark when it is older than tailSlack
	Open     []openTransaction `json:"o,omitempty"`
	Since    time.Time         `json:"q,omitzero"` // nothing before is told, if it shows nothing
}

// tailSpan is what came between two snapshots, and how far it has been told.
type tailSpan struct {
	Until tailView   `json:"u"`
	From  tailMark   `json:"f"`
	To    tailMark   `json:"t"` // nothing that Until shows is later
	Table int        `json:"k"` // of tailTables
	After tailRowKey `json:"a"`
}

// tailRowKey is a row's place in the order in which its table is told. A message has only its number.
type tailRowKey struct {
	At       time.Time `json:"t,omitzero"`
	ID       int64     `json:"n"`
	Handler  int64     `json:"h,omitempty"`
	ClaimSeq int64     `json:"c,omitempty"`
}

// tailPosition is all that a tail remembers, so that it can be continued anywhere.
type tailPosition struct {
	Seen tailView  `json:"v"`
	Span *tailSpan `json:"d,omitempty"` // nil: everything that Seen shows has been told, and nothing else
}

func (p tailPosition) String() string {
	text, _ := json.Marshal(p) // numbers, times and texts
	return string(text)
}

// snapshotPattern is the form of a pg_snapshot; what it matches can still make no sense.
var snapshotPattern = regexp.MustCompile(`^[0-9]{1,19}:[0-9]{1,19}:([0-9]{1,19}(,[0-9]{1,19})*)?$`)

func parseTailPosition(text string) (p tailPosition, err error) {
	if json.Unmarshal([]byte(text), &p) != nil || !snapshotPattern.MatchString(p.Seen.Snapshot) ||
		p.Span != nil && (!snapshotPattern.MatchString(p.Span.Until.Snapshot) || p.Span.Table < 0 || p.Span.Table >= len(tailTables)) {
		return tailPosition{}, fmt.Errorf("read the position: %w", inbox.ErrRefused)
	}
	return p, nil
}

// TailFrom returns the position from which a tail tells what happens from now on, or what has happened since a time.
func (db *DB) TailFrom(ctx context.Context, since time.Time) (string, error) {
	if since.IsZero() {
		view, err := db.firstView(ctx)
		if err != nil {
			return "", fmt.Errorf("begin a tail: %w", mapError(err))
		}
		return tailPosition{Seen: view}.String(), nil
	}
	id, err := db.numberBefore(ctx, since)
	if err != nil {
		return "", fmt.Errorf("begin a tail: %w", mapError(err))
	}
	mark := tailMark{At: since, ID: id}
	// This snapshot shows nothing.
	return tailPosition{Seen: tailView{Snapshot: "3:3:", Mark: mark, Young: mark, Since: since}}.String(), nil
}

// Tail returns what happened after a position, oldest first: of what came between two looks, first the messages, then
// the failures, then the ends. Of the filter it heeds status, source, handler, message type and reach. It fails with
// ErrRefused if the position is none.
func (db *DB) Tail(ctx context.Context, f inbox.Filter, position string) (page inbox.TailPage, err error) {
	p, err := parseTailPosition(position)
	if err != nil {
		return page, err
	}
	if p.Span == nil {
		if p.Span, err = db.nextSpan(ctx, p.Seen); err != nil {
			return page, fmt.Errorf("look for what is new: %w", err)
		}
	}
	for span := p.Span; span.Table < len(tailTables); {
		part, err := tailTables[span.Table](ctx, db, f, p.Seen, span)
		if err != nil {
			return page, fmt.Errorf("read what is new: %w", mapError(err))
		}
		for _, e := range part.events {
			span.After = e.key
			e.After = p.String()
			page.Events = append(page.Events, e.TailEvent)
		}
		if part.full {
			span.After = part.last
			page.Next, page.More = p.String(), true
			return page, nil
		}
		span.Table, span.After = span.Table+1, tailRowKey{}
	}
	page.Next = tailPosition{Seen: p.Span.Until}.String()
	return page, nil
}

// tailLook takes a snapshot, and then lists the open transactions and reads the last number. Of the time and the number
// the latter may be the older one, by far less than tailSlack.
const tailLook = `
SELECT pg_current_snapshot()::text, s.id, clock_timestamp(), o.pids, o.began, o.wrote
FROM (SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END AS id FROM inbox_message_id) AS s
CROSS JOIN (SELECT coalesce(array_agg(pid), '{}') AS pids, coalesce(array_agg(xact_start), '{}') AS began,
                   coalesce(array_agg(backend_xid IS NOT NULL), '{}') AS wrote
            FROM pg_stat_activity
            WHERE datname = current_database() AND backend_type = 'client backend' AND xact_start IS NOT NULL
              AND pid <> pg_backend_pid()) AS o`

// tailMoment is what a look saw.
type tailMoment struct {
	snapshot string
	mark     tailMark // of the moment after the snapshot
	open     []openTransaction
}

// find returns the transaction as it was listed then, or nil.
func (m *tailMoment) find(t openTransaction) *openTransaction {
	if i := slices.IndexFunc(m.open, t.same); i >= 0 {
		return &m.open[i]
	}
	return nil
}

// over reports whether a transaction may have ended between two looks. PostgreSQL still lists one for a moment that others
// see as ended, but no longer as one that has written.
func over(t openTransaction, before, after *tailMoment) bool {
	was, is := before.find(t), after.find(t)
	return is == nil || was == nil || was.wrote && !is.wrote
}

func (t openTransaction) same(o openTransaction) bool {
	return o.PID == t.PID && o.Began.Equal(t.Began)
}

func (db *DB) look(ctx context.Context) (*tailMoment, error) {
	var (
		m     tailMoment
		pids  []int32
		began []time.Time
		wrote []bool
	)
	err := db.pool.QueryRow(ctx, tailLook).Scan(&m.snapshot, &m.mark.ID, &m.mark.At, &pids, &began, &wrote)
	for i, pid := range pids {
		m.open = append(m.open, openTransaction{PID: pid, Began: began[i], wrote: wrote[i]})
	}
	return &m, err
}

// lookTwice takes the snapshot of the second look. A transaction that ends between the two may be in the snapshot or not.
func (db *DB) lookTwice(ctx context.Context) (before, after *tailMoment, err error) {
	if before, err = db.look(ctx); err == nil {
		after, err = db.look(ctx)
	}
	return before, after, err
}

// firstView is a view of this moment. Nobody has noted the numbers of the past, so its marks are estimates that lie
// well before.
func (db *DB) firstView(ctx context.Context) (tailView, error) {
	before, after, err := db.lookTwice(ctx)
	if err != nil {
		return tailView{}, err
	}
	view := tailView{Snapshot: after.snapshot, Mark: tailMark{At: before.mark.At.Add(-tailSlack)}, Young: before.mark}
	if view.Mark.ID, err = db.numberBefore(ctx, view.Mark.At); err != nil {
		return view, err
	}
	for _, t := range before.open {
		if t.Began.Before(view.Mark.At) {
			t.Mark.At = t.Began
			if t.Mark.ID, err = db.numberBefore(ctx, t.Began); err != nil {
				return view, err
			}
			view.Open = append(view.Open, t)
		}
	}
	return view, nil
}

// numberBefore returns a number that those who begin at the time or later are above.
func (db *DB) numberBefore(ctx context.Context, t time.Time) (int64, error) {
	id, err := db.firstAt(ctx, t.Add(-clockSkew))
	return id - 1, err
}

// nextSpan looks for what has come since a view.
func (db *DB) nextSpan(ctx context.Context, seen tailView) (*tailSpan, error) {
	before, after, err := db.lookTwice(ctx)
	if err != nil {
		return nil, mapError(err)
	}
	until := tailView{Snapshot: after.snapshot, Mark: seen.Mark, Young: seen.Young}
	if before.mark.At.Sub(seen.Young.At) >= tailSlack {
		until.Mark, until.Young = seen.Young, before.mark
	}
	if latest(after.snapshot) < latest(seen.Snapshot) {
		return nil, errForeign
	}
	from := seen.Mark
	if now := before.mark.At; now.Before(seen.Young.At) {
		// The clock was set back, so times begin anew.
		from.At = now.Add(-tailSlack)
		until.Mark.At, until.Young.At = from.At, now
	}
	for _, t := range seen.Open {
		if over(t, before, after) {
			from = tailMark{At: earlier(from.At, t.Mark.At), ID: min(from.ID, t.Mark.ID)}
		}
	}
	for _, t := range before.open {
		if t.Began.Before(until.Mark.At) {
			t.Mark = seen.Mark // it began after this mark, or it would have been noted
			if i := slices.IndexFunc(seen.Open, t.same); i >= 0 {
				t.Mark = seen.Open[i].Mark
			}
			until.Open = append(until.Open, t)
		}
	}
	return &tailSpan{Until: until, From: from, To: after.mark}, nil
}

// errForeign is of a position whose transactions the database doesn't know yet: it was restored to an earlier state, or
// is another.
var errForeign = fmt.Errorf("the position isn't of this database: %w", inbox.ErrRefused)

// latest returns the number that a snapshot's transactions are below.
func latest(snapshot string) uint64 {
	_, rest, _ := strings.Cut(snapshot, ":")
	text, _, _ := strings.Cut(rest, ":")
	n, _ := strconv.ParseUint(text, 10, 64)
	return n
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
