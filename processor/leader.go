package processor

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/inboxd/inboxd/inbox"
)

// LeaderStore is what the leader needs of the database.
type LeaderStore interface {
	// Lead takes or renews the lease and returns its term, or 0 while another leads.
	Lead(ctx context.Context, owner string, lease time.Duration) (term int64, err error)
	// Yield ends the lease.
	Yield(ctx context.Context, owner string) error
	// MakePartitions makes the missing partitions of today and so many days ahead.
	MakePartitions(ctx context.Context, ahead int) (made int, err error)
	// Reclaim ends a page of claims whose lease has run out, as failed attempts.
	Reclaim(ctx context.Context, owner string, page int, delay func(handler int64, retryCount int) time.Duration) ([]inbox.Recorded, error)
	// DiscardOrphans ends a page of deliveries of deleted handlers.
	DiscardOrphans(ctx context.Context, page int) (int, error)
	// Backlogs counts what waits for each handler, up to limit.
	Backlogs(ctx context.Context, limit int) ([]inbox.Backlog, error)
	// Parking lists the places where something stays until somebody acts.
	Parking(ctx context.Context) ([]inbox.ParkingPlace, error)
}

// The leader's times.
const (
	leaderLease  = 15 * time.Second
	leaderRenew  = 5 * time.Second
	leaderTurn   = time.Second
	reclaimDelay = 15 * time.Second // of a new term, or since the database was last away: owners record first
	daysAhead    = 14
	leaderPage   = 500
	backlogCap   = 100_000
	turnTimeout  = 10 * time.Second
)

// LeaderConfig is what a Leader is made of; all of it must be set but Logger.
type LeaderConfig struct {
	Store      LeaderStore
	Snapshots  Snapshots
	Owner      string // this instance's name, unique among the instances
	Registerer prometheus.Registerer
	Logger     zerolog.Logger
}

// Leader does what one instance does for all, while it holds the lease: reclaim, partitions, the rows of
// deleted handlers, counts. Each of its statements is safe beside another leader's, so a lease that is lost
// unnoticed costs nothing but work.
type Leader struct {
	store     LeaderStore
	snapshots Snapshots
	owner     string
	log       zerolog.Logger

	leads atomic.Bool // whether it leads, for others to ask

	leading   prometheus.Gauge
	reclaimed prometheus.Counter
	pending   *prometheus.GaugeVec
	oldest    *prometheus.GaugeVec
	parked    *prometheus.GaugeVec
	parking   *prometheus.GaugeVec

	term      int64
	renewed   time.Time // when the lease was last renewed
	safeSince time.Time // since when this term has had the database without a break
	daily     time.Time // when partitions were last looked at
	counted   time.Time
}

// NewLeader makes a Leader.
func NewLeader(cfg LeaderConfig) *Leader {
	l := &Leader{store: cfg.Store, snapshots: cfg.Snapshots, owner: cfg.Owner, log: cfg.Logger}
	l.leading = prometheus.NewGauge(prometheus.GaugeOpts{Name: "inboxd_leader", Help: "1 while this instance leads."})
	l.reclaimed = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "inboxd_reclaimed_total", Help: "Claims that were taken back after their lease had run out.",
	})
	byHandler := []string{"handler"}
	l.pending = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "inboxd_pending", Help: "Deliveries PENDING or FAILED, counted up to 100000; the leader's alone.",
	}, byHandler)
	l.oldest = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "inboxd_oldest_pending_seconds", Help: "How long the longest due delivery has been due.",
	}, byHandler)
	l.parked = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "inboxd_parked", Help: "Deliveries MANUAL_REQUIRED, counted up to 100000; the leader's alone.",
	}, byHandler)
	l.parking = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "inboxd_parking", Help: "What stays in a place until somebody acts, counted up to its bound; 0 for a source that refuses; the leader's alone.",
	}, []string{"place", "handler", "source"})
	cfg.Registerer.MustRegister(l.leading, l.reclaimed, l.pending, l.oldest, l.parked, l.parking)
	return l
}

// Leading reports whether this instance leads, as far as it knows: the lease may just have run out.
func (l *Leader) Leading() bool { return l.leads.Load() }

// Run leads whenever it can until ctx is done, and then yields.
func (l *Leader) Run(ctx context.Context) error {
	ticker := time.NewTicker(leaderTurn)
	defer ticker.Stop()
	for {
		l.turn(ctx)
		select {
		case <-ctx.Done():
			l.yield(ctx)
			return nil
		case <-ticker.C:
		}
	}
}

func (l *Leader) yield(ctx context.Context) {
	if l.term == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if err := l.store.Yield(ctx, l.owner); err != nil {
		l.log.Warn().Err(err).Msg("the next leader waits for the lease to run out")
	}
}

// turn renews the lease when it is time and does what is due.
func (l *Leader) turn(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, turnTimeout)
	defer cancel()
	if err := l.work(ctx); err != nil && ctx.Err() != context.Canceled {
		l.log.Warn().Err(err).Int64("term", l.term).Msg("the leader's turn")
		l.safeSince = time.Time{}
	}
}

func (l *Leader) work(ctx context.Context) error {
	if time.Since(l.renewed) >= leaderRenew {
		started := time.Now()
		term, err := l.store.Lead(ctx, l.owner, leaderLease)
		if err != nil {
			return err
		}
		l.renewed = started
		if term != l.term {
			l.begin(term)
		}
	}
	if l.term == 0 {
		return nil
	}
	if l.safeSince.IsZero() {
		l.safeSince = time.Now()
	}
	if time.Since(l.daily) >= time.Hour {
		made, err := l.store.MakePartitions(ctx, daysAhead)
		if err != nil {
			return err
		}
		l.daily = time.Now()
		if made > 0 {
			l.log.Info().Int("partitions", made).Msg("made partitions")
		}
	}
	if err := l.reclaim(ctx); err != nil {
		return err
	}
	for {
		n, err := l.store.DiscardOrphans(ctx, leaderPage)
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
		l.log.Info().Int("deliveries", n).Msg("discarded deliveries of a deleted handler")
	}
	if time.Since(l.counted) >= leaderRenew {
		l.counted = time.Now()
		return l.count(ctx)
	}
	return nil
}

// begin starts a term, or ends one when another instance leads.
func (l *Leader) begin(term int64) {
	l.term, l.safeSince, l.daily, l.counted = term, time.Time{}, time.Time{}, time.Time{}
	l.leads.Store(term != 0)
	if term == 0 {
		l.leading.Set(0)
		l.pending.Reset()
		l.oldest.Reset()
		l.parked.Reset()
		l.parking.Reset()
		return
	}
	l.leading.Set(1)
	l.log.Info().Int64("term", term).Msg("leading")
}

// reclaim takes back the claims of processors that are gone. After an outage or a change of leaders the
// owners get time to record what they did meanwhile.
func (l *Leader) reclaim(ctx context.Context) error {
	if time.Since(l.safeSince) < reclaimDelay {
		return nil
	}
	snapshot := l.snapshots.Current()
	delay := func(handler int64, retryCount int) time.Duration {
		if h := snapshot.Handler(handler); h != nil {
			return h.Backoff.Jittered(retryCount)
		}
		return 0 // of a deleted handler: discarded next
	}
	for {
		reclaimed, err := l.store.Reclaim(ctx, l.owner, leaderPage, delay)
		if err != nil {
			return err
		}
		l.reclaimed.Add(float64(len(reclaimed)))
		if len(reclaimed) > 0 {
			l.log.Warn().Int("claims", len(reclaimed)).Msg("took back claims whose lease had run out")
		}
		if len(reclaimed) < leaderPage {
			return nil
		}
	}
}

func (l *Leader) count(ctx context.Context) error {
	backlogs, err := l.store.Backlogs(ctx, backlogCap)
	if err != nil {
		return err
	}
	places, err := l.store.Parking(ctx)
	if err != nil {
		return err
	}
	l.parking.Reset()
	for _, p := range places {
		l.parking.WithLabelValues(p.Place, p.Handler, p.Source).Add(float64(p.Count.N)) // two handlers of a name, one deleted
	}
	snapshot := l.snapshots.Current()
	l.pending.Reset()
	l.oldest.Reset()
	l.parked.Reset()
	for _, b := range backlogs {
		h := snapshot.Handler(b.HandlerID)
		if h == nil {
			continue
		}
		l.pending.WithLabelValues(h.Name).Set(float64(b.Pending))
		l.oldest.WithLabelValues(h.Name).Set(b.OldestAge.Seconds())
		l.parked.WithLabelValues(h.Name).Set(float64(b.Parked))
	}
	return nil
}
