// Package processor moves deliveries through their states: it claims what is ready in short transactions,
// forwards it to the handlers once the claim is committed, and records the results in batches. Its leader
// takes back claims whose processor has gone, and makes the partitions of the days to come.
package processor

import (
	"context"
	"crypto/rand"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/inboxd/inboxd/inbox"
)

// Store is what the processor needs of the database.
type Store interface {
	// Claim takes ready deliveries, the longest due first, and returns the database's time.
	Claim(ctx context.Context, owner string, token inbox.Token, wants []inbox.Want) ([]inbox.Claim, time.Time, error)
	// Messages reads the messages of claims, by number.
	Messages(ctx context.Context, claims []inbox.Claim) (map[int64]*inbox.Message, error)
	// Record writes results back, each under its claim. It may be repeated.
	Record(ctx context.Context, owner string, results []inbox.Result) ([]inbox.Recorded, error)
}

// Snapshots gives the current sources and handlers.
type Snapshots interface {
	Current() *inbox.Snapshot
}

// Config is what a Processor is made of. The first five must be set.
type Config struct {
	Store      Store
	Snapshots  Snapshots
	Forwarder  *Forwarder
	Owner      string // this instance's name, unique among the instances
	Registerer prometheus.Registerer
	Logger     zerolog.Logger

	Recorders int           // statements that record at once; default 2
	Drain     time.Duration // what attempts under way may still take after Run's ctx is done; default 20 s
}

// Processor claims, forwards and records.
type Processor struct {
	store     Store
	snapshots Snapshots
	forwarder *Forwarder
	owner     string
	metrics   *metrics
	log       zerolog.Logger
	drain     time.Duration

	wake     chan struct{} // holds one: "look for work now"
	recorder *recorder
	handlers map[int64]*handlerState // of the claim loop alone
}

// handlerState is what the claim loop knows of one handler.
type handlerState struct {
	cursor
	inFlight atomic.Int64 // claims that are not yet with the recorder
	hungry   atomic.Bool  // more is ready than had free slots: the claim loop wants to know when half are free
}

// New makes a Processor.
func New(cfg Config) *Processor {
	m := newMetrics(cfg.Registerer)
	p := &Processor{
		store: cfg.Store, snapshots: cfg.Snapshots, forwarder: cfg.Forwarder, owner: cfg.Owner, metrics: m,
		log: cfg.Logger, drain: cfg.Drain, wake: make(chan struct{}, 1), handlers: make(map[int64]*handlerState),
	}
	if p.drain == 0 {
		p.drain = 20 * time.Second
	}
	recorders := cfg.Recorders
	if recorders == 0 {
		recorders = 2
	}
	p.recorder = newRecorder(cfg.Store, cfg.Owner, recorders, m, cfg.Logger)
	return p
}

// Wake makes the processor look for work now. It never waits.
func (p *Processor) Wake() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// The times of the claim loop.
const (
	claimInterval = 2 * time.Millisecond   // at least so long from one claim to the next, so that claims take batches
	slotsInterval = 10 * time.Millisecond  // at most so long for half of a handler's slots to be free, when more is ready
	pollMin       = 250 * time.Millisecond // between looks when nothing was ready
	pollMax       = time.Second            // what they back off to
	claimTimeout  = 5 * time.Second
)

// Run works until ctx is done. Then it claims no more, gives the attempts under way their drain time,
// releases what was not sent, and returns once all that happened is recorded.
func (p *Processor) Run(ctx context.Context) error {
	// Attempts outlive ctx by the drain time, recording outlives the attempts.
	work, cancelWork := context.WithCancel(context.WithoutCancel(ctx))
	defer cancelWork()
	var recording sync.WaitGroup
	recordCtx, stopRecording := context.WithCancel(context.WithoutCancel(ctx))
	defer stopRecording()
	recording.Go(func() { p.recorder.run(recordCtx) })

	var attempts sync.WaitGroup
	p.claimLoop(ctx, work, &attempts)

	timer := time.AfterFunc(p.drain, cancelWork)
	attempts.Wait()
	timer.Stop()

	p.recorder.close()
	// The database may be away; what can't be recorded by then is taken back when its lease runs out.
	timer = time.AfterFunc(recordTimeout, stopRecording)
	recording.Wait()
	timer.Stop()
	return nil
}

// claimLoop claims until ctx is done, and starts the attempts in work.
func (p *Processor) claimLoop(ctx, work context.Context, attempts *sync.WaitGroup) {
	poll := pollMin
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		case <-timer.C:
		}
		started := time.Now()
		claimed, more := p.claim(ctx, work, attempts)
		wait := poll
		switch {
		case more:
			wait = slotsInterval
		case claimed:
			poll = pollMin
			wait = poll
		default:
			poll = min(poll*2, pollMax)
		}
		// A claim a millisecond would take a row or two each; a short rest lets them add up.
		if rest := claimInterval - time.Since(started); rest > 0 {
			select {
			case <-ctx.Done():
				return
			case <-time.After(rest):
			}
		}
		timer.Reset(wait)
	}
}

// claim claims once, and starts an attempt for each claim. claimed says that something was ready, more that
// a handler got as many as it asked for, so that there may be more.
func (p *Processor) claim(ctx, work context.Context, attempts *sync.WaitGroup) (claimed, more bool) {
	snapshot := p.snapshots.Current()
	started := time.Now()
	var wants []inbox.Want
	for _, h := range snapshot.Handlers {
		state := p.handlers[h.ID]
		if state == nil {
			state = &handlerState{}
			p.handlers[h.ID] = state
		}
		if h.Paused {
			continue
		}
		free := h.Concurrency - int(state.inFlight.Load())
		if free <= 0 {
			more = more || state.hungry.Load()
			continue
		}
		wants = append(wants, inbox.Want{HandlerID: h.ID, Free: free, Bound: state.next(started), Lease: h.Lease()})
	}
	if len(wants) == 0 {
		return false, more
	}
	// A stop doesn't cut the statement short: what it may have committed would be held until the leases end.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), claimTimeout)
	defer cancel()
	var token inbox.Token
	_, _ = rand.Read(token[:]) // never fails, says its documentation
	token[6], token[8] = token[6]&0x0f|0x40, token[8]&0x3f|0x80
	claims, now, err := p.store.Claim(ctx, p.owner, token, wants)
	if err != nil {
		p.log.Warn().Err(err).Msg("claiming")
		return false, false
	}
	p.metrics.claimLatency.Observe(time.Since(started).Seconds())

	byHandler := make(map[int64][]inbox.Claim, len(wants))
	for _, c := range claims {
		byHandler[c.Handler] = append(byHandler[c.Handler], c)
	}
	for _, w := range wants {
		state, got := p.handlers[w.HandlerID], byHandler[w.HandlerID]
		state.inFlight.Add(int64(len(got)))
		if state.claimed(got, w.Free, now, started) {
			more = true
			state.hungry.Store(true)
		}
	}
	if len(claims) == 0 {
		return false, more
	}
	p.metrics.transitions.WithLabelValues(string(inbox.Processing)).Add(float64(len(claims)))
	states := make(map[int64]*handlerState, len(byHandler))
	for id := range byHandler {
		states[id] = p.handlers[id]
	}
	batch := &batch{claims: claims, snapshot: snapshot, states: states, claimedAt: started, now: now}
	attempts.Go(func() { p.dispatch(work, batch, attempts) })
	return true, more
}

// batch is what one claim statement returned.
type batch struct {
	claims    []inbox.Claim
	snapshot  *inbox.Snapshot
	states    map[int64]*handlerState // of the handlers among the claims
	claimedAt time.Time               // Go's clock, from before the claim: the leases are at least this old
	now       time.Time               // the database's clock
}

// dispatch reads the messages of a committed claim, and attempts each delivery on its own.
func (p *Processor) dispatch(work context.Context, b *batch, attempts *sync.WaitGroup) {
	ctx, cancel := context.WithTimeout(work, claimTimeout)
	messages, err := p.store.Messages(ctx, b.claims)
	cancel()
	if err != nil {
		p.log.Warn().Err(err).Int("claims", len(b.claims)).Msg("releasing claims whose messages can't be read")
		for _, c := range b.claims {
			p.finish(b, inbox.Result{Claim: c, Verdict: inbox.VerdictRelease})
		}
		return
	}
	for _, c := range b.claims {
		attempts.Go(func() { p.finish(b, p.attempt(work, b, c, messages[c.Message])) })
	}
}

// attempt makes one try of a delivery, or releases it.
func (p *Processor) attempt(work context.Context, b *batch, c inbox.Claim, m *inbox.Message) inbox.Result {
	handler := b.snapshot.Handler(c.Handler)
	if m == nil {
		return inbox.Result{
			Claim: c, Verdict: inbox.VerdictPermanent, Class: inbox.ClassRequest, Error: "the message's row is gone",
		}
	}
	// The claim must still hold when the attempt ends, or another processor would take the delivery while
	// this one is at the handler.
	if work.Err() != nil || handler.Lease()-time.Since(b.claimedAt) < handler.Timeout {
		return inbox.Result{Claim: c, Verdict: inbox.VerdictRelease}
	}
	if c.RetryCount == 0 && c.ReplayNo == 0 {
		p.metrics.wait.Observe((b.now.Sub(c.ReceivedAt) + time.Since(b.claimedAt)).Seconds())
	}
	source := ""
	if s := b.snapshot.SourceByID(c.SourceID); s != nil {
		source = s.Name
	}
	result := p.forwarder.Forward(work, handler, source, c, m)
	if result.Verdict == inbox.VerdictRelease {
		return result
	}
	class := string(result.Class)
	if result.Verdict == inbox.VerdictDone {
		class = "ok"
		p.metrics.endToEnd.Observe((b.now.Sub(c.ReceivedAt) + time.Since(b.claimedAt)).Seconds())
	}
	p.metrics.attempts.WithLabelValues(handler.Name, class).Inc()
	p.metrics.attemptSeconds.Observe(result.Duration.Seconds())
	return result
}

// finish hands a result to the recorder and frees its slot.
func (p *Processor) finish(b *batch, r inbox.Result) {
	p.recorder.put(r)
	state := b.states[r.Handler]
	if busy := state.inFlight.Add(-1); busy <= int64(b.snapshot.Handler(r.Handler).Concurrency/2) && state.hungry.CompareAndSwap(true, false) {
		p.Wake()
	}
}
