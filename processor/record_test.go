package processor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/rs/zerolog"

	"github.com/inboxd/inboxd/inbox"
)

// fakeLedger takes results and fails on cue.
type fakeLedger struct {
	Store
	mu       sync.Mutex
	recorded []inbox.Result
	sizes    []int
	fail     func(call int, results []inbox.Result) error
	calls    int
	delay    time.Duration
}

func (f *fakeLedger) Record(_ context.Context, _ string, results []inbox.Result) ([]inbox.Recorded, error) {
	time.Sleep(f.delay) // of a bubble's clock
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	if f.fail != nil {
		if err := f.fail(f.calls, results); err != nil {
			return nil, err
		}
	}
	f.recorded = append(f.recorded, results...)
	f.sizes = append(f.sizes, len(results))
	recorded := make([]inbox.Recorded, len(results))
	for i, r := range results {
		recorded[i] = inbox.Recorded{Status: inbox.Done, Stale: r.Message == 13}
	}
	return recorded, nil
}

func recordAll(ctx context.Context, r *recorder, ids ...int64) {
	var wg sync.WaitGroup
	wg.Go(func() { r.run(ctx) })
	for _, id := range ids {
		r.put(inbox.Result{Claim: inbox.Claim{DeliveryID: inbox.DeliveryID{Message: id}}, Verdict: inbox.VerdictDone})
	}
	r.close()
	wg.Wait()
}

func upTo(n int64) []int64 {
	ids := make([]int64, n)
	for i := range ids {
		ids[i] = int64(i + 1)
	}
	return ids
}

func TestRecorderOutlastsAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ledger := &fakeLedger{fail: func(call int, _ []inbox.Result) error {
			if call <= 20 {
				return fmt.Errorf("record: %w", inbox.ErrUnavailable)
			}
			return nil
		}}
		r := newRecorder(ledger, "me", 1, newMetrics(prometheus.NewRegistry()), zerolog.Nop())
		recordAll(t.Context(), r, upTo(100)...)
		if len(ledger.recorded) != 100 {
			t.Errorf("%d results recorded, want all 100 after the outage", len(ledger.recorded))
		}
		if stale := testutil.ToFloat64(r.metrics.stale); stale != 1 {
			t.Errorf("stale write-backs = %v, want the 1 of message 13", stale)
		}
	})
}

func TestRecorderBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ledger := &fakeLedger{delay: 10 * time.Millisecond}
		r := newRecorder(ledger, "me", 1, newMetrics(prometheus.NewRegistry()), zerolog.Nop())
		recordAll(t.Context(), r, upTo(1200)...)
		if len(ledger.recorded) != 1200 || len(ledger.sizes) > 4 {
			t.Errorf("%d results in batches of %v, want 1200 in at most 4", len(ledger.recorded), ledger.sizes)
		}
		for _, size := range ledger.sizes {
			if size > recordBatch {
				t.Errorf("a batch of %d, want at most %d", size, recordBatch)
			}
		}
	})
}

func TestOneRefusedResultFailsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ledger := &fakeLedger{delay: time.Millisecond, fail: func(_ int, results []inbox.Result) error {
			for _, result := range results {
				if result.Message == 5 {
					return inbox.ErrRefused
				}
			}
			return nil
		}}
		r := newRecorder(ledger, "me", 1, newMetrics(prometheus.NewRegistry()), zerolog.Nop())
		recordAll(t.Context(), r, upTo(10)...)
		if len(ledger.recorded) != 9 {
			t.Errorf("%d results recorded, want the other 9", len(ledger.recorded))
		}
	})
}

func TestRecorderStopsWhenItMust(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ledger := &fakeLedger{fail: func(int, []inbox.Result) error { return errors.New("away") }}
		r := newRecorder(ledger, "me", 2, newMetrics(prometheus.NewRegistry()), zerolog.Nop())
		ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
		defer cancel()
		recordAll(ctx, r, 1, 2, 3)
		if ctx.Err() == nil || len(ledger.recorded) != 0 {
			t.Errorf("stopped with %d recorded, want to go on until the deadline", len(ledger.recorded))
		}
	})
}
