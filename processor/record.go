package processor

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/inboxd/inboxd/inbox"
)

const (
	maxUnrecorded = 2000 // results that wait; beyond it attempts keep their slots, so that claims stop
	recordBatch   = 500
	recordTimeout = 15 * time.Second // of one statement, and of the last ones at shutdown
	recordPause   = 100 * time.Millisecond
	recordPauseTo = time.Second
)

// recorder writes results back in batches that grow by themselves while a statement runs.
type recorder struct {
	store   Store
	owner   string
	workers int
	metrics *metrics
	log     zerolog.Logger
	results chan inbox.Result // closed by close, once nobody puts any more
}

func newRecorder(store Store, owner string, workers int, m *metrics, log zerolog.Logger) *recorder {
	return &recorder{
		store: store, owner: owner, workers: workers, metrics: m, log: log,
		results: make(chan inbox.Result, maxUnrecorded),
	}
}

// put hands a result over; it waits while too many are not recorded.
func (r *recorder) put(result inbox.Result) { r.results <- result }

func (r *recorder) close() { close(r.results) }

// run records until close was called and all is written, or ctx is done.
func (r *recorder) run(ctx context.Context) {
	var wg sync.WaitGroup
	for range r.workers {
		wg.Go(func() {
			for first := range r.results {
				r.record(ctx, r.gather(first))
			}
		})
	}
	wg.Wait()
}

func (r *recorder) gather(first inbox.Result) []inbox.Result {
	batch := []inbox.Result{first}
	for len(batch) < recordBatch {
		select {
		case result, ok := <-r.results:
			if !ok {
				return batch
			}
			batch = append(batch, result)
		default:
			return batch
		}
	}
	return batch
}

// record writes a batch, again and again while the database is away: what a handler has done must not be
// done twice because a statement failed.
func (r *recorder) record(ctx context.Context, batch []inbox.Result) {
	pause := recordPause
	for {
		timeout, cancel := context.WithTimeout(ctx, recordTimeout)
		recorded, err := r.store.Record(timeout, r.owner, batch)
		cancel()
		if err == nil {
			r.count(batch, recorded)
			return
		}
		if errors.Is(err, inbox.ErrRefused) {
			if len(batch) > 1 {
				r.record(ctx, batch[:len(batch)/2])
				r.record(ctx, batch[len(batch)/2:])
				return
			}
			r.log.Error().Err(err).Stringer("delivery", batch[0].DeliveryID).
				Msg("a result can't be recorded; its claim runs out")
			return
		}
		r.log.Warn().Err(err).Int("results", len(batch)).Msg("recording; trying again")
		select {
		case <-ctx.Done():
			r.log.Error().Int("results", len(batch)).Msg("stopped before all results were recorded; their claims run out")
			return
		case <-time.After(pause):
			pause = min(pause*2, recordPauseTo)
		}
	}
}

func (r *recorder) count(batch []inbox.Result, recorded []inbox.Recorded) {
	for i, rec := range recorded {
		if rec.Stale {
			if batch[i].Verdict != inbox.VerdictRelease {
				r.metrics.stale.Inc()
			}
			continue
		}
		r.metrics.transitions.WithLabelValues(string(rec.Status)).Inc()
		if rec.Status == inbox.ManualRequired {
			r.log.Warn().Stringer("delivery", batch[i].DeliveryID).Str("class", string(batch[i].Class)).
				Int("response_status", batch[i].ResponseStatus).Msg("parked: MANUAL_REQUIRED")
		}
	}
}
