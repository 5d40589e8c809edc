package postgres

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/inboxd/inboxd/inbox"
)

// What the statistics may look at. Counts stop there and say so.
const (
	statsSample  = 10_000 // of messages, outcomes and attempts each: the latest of the window
	statsBacklog = 60_000 // deliveries of all handlers; each handler gets its share
	statsLeast   = 200    // a handler's least share
	statsPlace   = 1_000  // messages that are UNROUTED
)

// expiredGrace is how long a lease may have run out before it is worth telling: the leader takes it back
// within seconds, or 15 s after it began to lead.
const expiredGrace = time.Minute

// sampleMessages looks at the latest messages of the window; @first is about where it begins.
const sampleMessages = `
SELECT now(), count(*), min(received_at), count(*) FILTER (WHERE @sources::bigint[] IS NULL OR source_id = ANY (@sources))
FROM (SELECT received_at, source_id FROM inbox_message
      WHERE id >= @first AND received_at > now() - @window::interval
      ORDER BY id DESC LIMIT @sample) AS m`

// sampleOutcomes looks at the latest outcomes of the window, and says which are within reach. A DONE without a claim was not the handler's doing.
const sampleOutcomes = `
WITH ended AS MATERIALIZED (
    SELECT handler_id, result, claimed_at IS NOT NULL AS tried, replay_no, received_at, finished_at, duration,
           (@sources::bigint[] IS NULL OR source_id = ANY (@sources))
           AND (@handlers::bigint[] IS NULL OR handler_id IS NULL OR handler_id = ANY (@handlers)) AS seen
    FROM outcome WHERE finished_at > now() - @window::interval AND finished_at <= now()
    ORDER BY finished_at DESC, id DESC LIMIT @sample
)
SELECT seen, coalesce(handler_id, 0), min(finished_at), count(*), count(*) FILTER (WHERE result = 'DONE'),
       count(*) FILTER (WHERE result = 'DISCARDED'), count(*) FILTER (WHERE tried),
       count(*) FILTER (WHERE tried AND replay_no = 0),
       percentile_disc(ARRAY [0.5, 0.95, 0.99]) WITHIN GROUP (ORDER BY extract(epoch FROM finished_at - received_at)::float8)
           FILTER (WHERE tried AND replay_no = 0),
       count(*) FILTER (WHERE tried AND duration IS NOT NULL),
       percentile_disc(ARRAY [0.5, 0.95, 0.99]) WITHIN GROUP (ORDER BY extract(epoch FROM duration)::float8)
           FILTER (WHERE tried AND duration IS NOT NULL)
FROM ended GROUP BY handler_id, seen`

// sampleAttempts looks at the latest failed attempts of the window.
const sampleAttempts = `
SELECT seen, handler_id, min(finished_at), count(*)
FROM (SELECT handler_id, finished_at,
             (@sources::bigint[] IS NULL OR source_id = ANY (@sources))
             AND (@handlers::bigint[] IS NULL OR handler_id = ANY (@handlers)) AS seen
      FROM attempt
      WHERE finished_at > now() - @window::interval AND finished_at <= now()
      ORDER BY finished_at DESC, id DESC LIMIT @sample) AS a
GROUP BY handler_id, seen`

// readWaiting counts what is not finished, by handler through the partial indexes. All counts but that of claims,
// which handlers' concurrency keeps few, stop when as many as the handler's share were looked at; what is out of reach
// is looked at and not counted.
const readWaiting = `
WITH claimed AS MATERIALIZED (
    SELECT handler_id, count(*) AS n, count(*) FILTER (WHERE lease_until < now() - @grace::interval) AS expired,
           min(lease_until) FILTER (WHERE lease_until < now() - @grace::interval) AS oldest
    FROM (SELECT handler_id, lease_until, source_id FROM delivery WHERE status = 'PROCESSING' LIMIT @cap) AS d
    WHERE @sources::bigint[] IS NULL OR source_id = ANY (@sources)
    GROUP BY handler_id
), share AS MATERIALIZED (
    SELECT greatest(@least::bigint, @cap / greatest(count(*), 1)) AS n FROM handler
)
SELECT h.id, h.name, h.paused, h.deleted_at IS NOT NULL, ready.pending, ready.failed, ready.looked >= share.n, ready.due, ready.oldest,
       coalesce(claimed.n, 0), coalesce(claimed.expired, 0), claimed.oldest, waiting.n, waiting.looked >= share.n,
       parked.n, parked.looked >= share.n, parked.oldest
FROM share
CROSS JOIN handler AS h
LEFT JOIN claimed ON claimed.handler_id = h.id
CROSS JOIN LATERAL (
    SELECT count(*) AS looked, count(*) FILTER (WHERE seen AND status = 'PENDING') AS pending,
           count(*) FILTER (WHERE seen AND status = 'FAILED') AS failed,
           min(next_retry_time) FILTER (WHERE seen AND next_retry_time <= now()) AS due, min(received_at) FILTER (WHERE seen) AS oldest
    FROM (SELECT status, next_retry_time, received_at, @sources::bigint[] IS NULL OR source_id = ANY (@sources) AS seen FROM delivery
          WHERE handler_id = h.id AND status IN ('PENDING', 'FAILED')
          ORDER BY next_retry_time, id LIMIT share.n) AS d
) AS ready
CROSS JOIN LATERAL (
    SELECT count(*) AS looked, count(*) FILTER (WHERE @sources::bigint[] IS NULL OR source_id = ANY (@sources)) AS n
    FROM (SELECT source_id FROM delivery WHERE handler_id = h.id AND status = 'WAITING' LIMIT share.n) AS d
) AS waiting
CROSS JOIN LATERAL (
    SELECT count(*) AS looked, count(*) FILTER (WHERE seen) AS n, min(received_at) FILTER (WHERE seen) AS oldest
    FROM (SELECT received_at, @sources::bigint[] IS NULL OR source_id = ANY (@sources) AS seen
          FROM delivery WHERE handler_id = h.id AND status = 'MANUAL_REQUIRED'
          ORDER BY id LIMIT share.n) AS d
) AS parked
WHERE @handlers::bigint[] IS NULL OR h.id = ANY (@handlers)
ORDER BY h.name, h.id`

// waiting is a handler's row of readWaiting.
type waiting struct {
	inbox.HandlerStats
	oldest, oldestExpired time.Time
}

func (w waiting) empty() bool {
	for _, c := range w.Backlog {
		if c.N > 0 {
			return false
		}
	}
	return true
}

// readWaiting leaves out deleted handlers that nothing waits for.
func (db *DB) readWaiting(ctx context.Context, within *inbox.Reach) ([]waiting, error) {
	rows, _ := db.pool.Query(ctx, readWaiting, planned, withReach(within, pgx.StrictNamedArgs{
		"cap": statsBacklog, "least": statsLeast, "grace": expiredGrace,
	}))
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (w waiting, err error) {
		var (
			pending, failed, claims, expired, waits, parked int64
			manyReady, manyWait, manyParked                 bool
			due, oldest, oldestExpired, oldestParked        *time.Time
		)
		err = row.Scan(&w.HandlerID, &w.Handler, &w.Paused, &w.Deleted, &pending, &failed, &manyReady, &due, &oldest,
			&claims, &expired, &oldestExpired, &waits, &manyWait, &parked, &manyParked, &oldestParked)
		w.Backlog = map[inbox.Status]inbox.Count{
			inbox.Pending:        {N: pending, AtLeast: manyReady},
			inbox.Failed:         {N: failed, AtLeast: manyReady},
			inbox.Processing:     {N: claims, AtLeast: claims >= statsBacklog},
			inbox.Waiting:        {N: waits, AtLeast: manyWait},
			inbox.ManualRequired: {N: parked, AtLeast: manyParked},
		}
		w.ExpiredLease = inbox.Count{N: expired}
		w.OldestDue, w.OldestParked = orZero(due), orZero(oldestParked)
		w.oldest, w.oldestExpired = orZero(oldest), orZero(oldestExpired)
		return w, err
	})
	return slices.DeleteFunc(list, func(w waiting) bool { return w.Deleted && w.empty() }), err
}

// Stats tells how the inbox does, as far as the reach goes; rates and latencies are of the last window.
func (db *DB) Stats(ctx context.Context, within *inbox.Reach, window time.Duration) (*inbox.Stats, error) {
	s, err := db.stats(ctx, within, window)
	if err != nil {
		return nil, fmt.Errorf("read statistics: %w", mapError(err))
	}
	return s, nil
}

func (db *DB) stats(ctx context.Context, within *inbox.Reach, window time.Duration) (*inbox.Stats, error) {
	s := &inbox.Stats{Window: window}
	if err := db.sampleReceived(ctx, within, s); err != nil {
		return nil, err
	}
	list, err := db.readWaiting(ctx, within)
	if err != nil {
		return nil, err
	}
	s.Backlog = make(map[inbox.Status]inbox.Count)
	for _, w := range list {
		s.Handlers = append(s.Handlers, w.HandlerStats)
		for status, n := range w.Backlog {
			s.Backlog[status] = s.Backlog[status].Add(n)
			s.Unfinished = s.Unfinished.Add(n)
		}
	}
	if s.Unfinished.AtLeast && within == nil {
		// The statistics of PostgreSQL know better how many there are in all.
		estimate, err := db.estimateRows(ctx, "delivery")
		if err != nil {
			return nil, err
		}
		if estimate > s.Unfinished.N {
			s.Unfinished = inbox.Count{N: estimate, Estimated: true}
		}
	}
	if err := db.sampleEnded(ctx, within, s); err != nil {
		return nil, err
	}
	s.Parking, err = db.parking(ctx, within, list)
	return s, err
}

// sampleReceived fills in the time and what was received.
func (db *DB) sampleReceived(ctx context.Context, within *inbox.Reach, s *inbox.Stats) error {
	var now time.Time
	if err := db.pool.QueryRow(ctx, `SELECT now()`).Scan(&now); err != nil {
		return err
	}
	first, err := db.firstAt(ctx, now.Add(-s.Window-clockSkew))
	if err != nil {
		return err
	}
	var oldest *time.Time
	looked, n := 0, 0
	args := withReach(within, pgx.StrictNamedArgs{"first": first, "window": s.Window, "sample": statsSample})
	delete(args, "handlers")
	err = db.pool.QueryRow(ctx, sampleMessages, planned, args).Scan(&s.At, &looked, &oldest, &n)
	s.Received = sampled{looked: looked, span: s.At.Sub(orZero(oldest))}.of(n, s.Window)
	return err
}

// sampled is a sample of the latest, which may be all of the window.
type sampled struct {
	looked int
	span   time.Duration // from the first of the sample until now
}

// of returns how often n of the sample happen.
func (a sampled) of(n int, window time.Duration) inbox.Rate {
	if a.looked < statsSample {
		return inbox.Rate{PerMinute: float64(n) / window.Minutes()}
	}
	return inbox.Rate{PerMinute: float64(n) / max(a.span, time.Millisecond).Minutes(), Estimated: true}
}

// sampleEnded fills in what ended and what failed.
func (db *DB) sampleEnded(ctx context.Context, within *inbox.Reach, s *inbox.Stats) error {
	type ended struct {
		seen                                              bool
		handler                                           int64
		first                                             time.Time
		all, done, discarded, tried, endToEndN, durations int
		endToEnd, duration                                []float64
	}
	args := withReach(within, pgx.StrictNamedArgs{"window": s.Window, "sample": statsSample})
	rows, _ := db.pool.Query(ctx, sampleOutcomes, planned, args)
	outcomes, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e ended, err error) {
		err = row.Scan(&e.seen, &e.handler, &e.first, &e.all, &e.done, &e.discarded, &e.tried, &e.endToEndN, &e.endToEnd, &e.durations, &e.duration)
		return e, err
	})
	if err != nil {
		return err
	}
	rows, _ = db.pool.Query(ctx, sampleAttempts, planned, args)
	attempts, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e ended, err error) {
		err = row.Scan(&e.seen, &e.handler, &e.first, &e.all)
		return e, err
	})
	if err != nil {
		return err
	}
	// The sample is of all, whoever asks; the sum of what they may see.
	whole := func(list []ended) (seen []ended, sum int, sample sampled) {
		for _, e := range list {
			sample.looked += e.all
			sample.span = max(sample.span, s.At.Sub(e.first))
			if e.seen {
				seen, sum = append(seen, e), sum+e.all
			}
		}
		return seen, sum, sample
	}
	handler := func(id int64) *inbox.HandlerStats {
		if i := slices.IndexFunc(s.Handlers, func(h inbox.HandlerStats) bool { return h.HandlerID == id }); i >= 0 {
			return &s.Handlers[i]
		}
		return &inbox.HandlerStats{} // of no handler, or one that is deleted
	}
	outcomes, all, sample := whole(outcomes)
	s.Ended = sample.of(all, s.Window)
	tried := 0
	for _, e := range outcomes {
		h := handler(e.handler)
		h.Done, h.Discarded = sample.of(e.done, s.Window), sample.of(e.discarded, s.Window)
		h.EndToEnd, h.Attempt = percentiles(e.endToEndN, e.endToEnd), percentiles(e.durations, e.duration)
		tried += e.tried
	}
	s.Attempts = sample.of(tried, s.Window)
	attempts, all, sample = whole(attempts)
	s.Failed = sample.of(all, s.Window)
	for _, e := range attempts {
		handler(e.handler).Failed = sample.of(e.all, s.Window)
	}
	s.Attempts.PerMinute += s.Failed.PerMinute
	s.Attempts.Estimated = s.Attempts.Estimated || s.Failed.Estimated
	return nil
}

// percentiles takes seconds; none of an empty sample.
func percentiles(n int, seconds []float64) inbox.Percentiles {
	if n == 0 || len(seconds) != 3 {
		return inbox.Percentiles{}
	}
	duration := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)).Round(time.Microsecond) }
	return inbox.Percentiles{Sample: n, P50: duration(seconds[0]), P95: duration(seconds[1]), P99: duration(seconds[2])}
}

// countUnrouted looks at the newest messages that reached no handler when they came, and leaves out those that a
// replay has brought to one.
const countUnrouted = `
SELECT count(*), count(*) FILTER (WHERE lost), min(finished_at) FILTER (WHERE lost)
FROM (SELECT o.finished_at, (@sources::bigint[] IS NULL OR o.source_id = ANY (@sources))
             AND NOT EXISTS (SELECT FROM delivery AS d WHERE d.id = o.id)
             AND NOT EXISTS (SELECT FROM outcome AS h WHERE h.id = o.id AND h.handler_id IS NOT NULL
                                                        AND h.finished_at >= o.finished_at) AS lost
      FROM (SELECT id, finished_at, source_id FROM outcome WHERE result = 'UNROUTED' ORDER BY id DESC LIMIT @cap) AS o) AS u`

// Parking lists the places where something stays until somebody acts, those that are empty left out.
func (db *DB) Parking(ctx context.Context) ([]inbox.ParkingPlace, error) {
	list, err := db.readWaiting(ctx, nil)
	if err == nil {
		var places []inbox.ParkingPlace
		if places, err = db.parking(ctx, nil, list); err == nil {
			return places, nil
		}
	}
	return nil, fmt.Errorf("count what is parked: %w", mapError(err))
}

func (db *DB) parking(ctx context.Context, within *inbox.Reach, list []waiting) (places []inbox.ParkingPlace, err error) {
	handlers, err := db.Handlers(ctx)
	if err != nil {
		return nil, err
	}
	sources, err := db.Sources(ctx)
	if err != nil {
		return nil, err
	}
	add := func(place, handler string, count inbox.Count, oldest time.Time) {
		if count.N > 0 {
			places = append(places, inbox.ParkingPlace{Place: place, Handler: handler, Count: count, Oldest: oldest})
		}
	}
	for _, w := range list {
		ready := inbox.Count{N: w.Backlog[inbox.Pending].N + w.Backlog[inbox.Failed].N, AtLeast: w.Backlog[inbox.Pending].AtLeast}
		add(inbox.PlaceParked, w.Handler, w.Backlog[inbox.ManualRequired], w.OldestParked)
		add(inbox.PlaceLeaseExpired, w.Handler, w.ExpiredLease, w.oldestExpired)
		if w.Deleted {
			add(inbox.PlaceHandlerDeleted, w.Handler, ready.Add(w.Backlog[inbox.Waiting]), w.oldest)
			continue
		}
		if w.Paused {
			add(inbox.PlacePaused, w.Handler, ready, w.oldest)
		}
		if slices.ContainsFunc(handlers, func(h *inbox.Handler) bool { return h.ID == w.HandlerID && h.SecretFault != "" }) {
			add(inbox.PlaceHandlerSecret, w.Handler, ready, w.oldest)
		}
	}
	var (
		looked int
		lost   inbox.Count
		oldest *time.Time
	)
	args := withReach(within, pgx.StrictNamedArgs{"cap": statsPlace})
	delete(args, "handlers")
	err = db.pool.QueryRow(ctx, countUnrouted, planned, args).Scan(&looked, &lost.N, &oldest)
	if err != nil {
		return nil, err
	}
	lost.AtLeast = looked == statsPlace
	add(inbox.PlaceUnrouted, "", lost, orZero(oldest))
	for _, s := range sources {
		if !within.Source(s.ID) {
			continue
		}
		if !s.Enabled {
			places = append(places, inbox.ParkingPlace{Place: inbox.PlaceSourceDisabled, Source: s.Name})
		}
		if s.SecretFault != "" {
			places = append(places, inbox.ParkingPlace{Place: inbox.PlaceSourceSecret, Source: s.Name})
		}
	}
	slices.SortStableFunc(places, func(a, b inbox.ParkingPlace) int { return cmp.Compare(a.Place, b.Place) })
	return places, nil
}
