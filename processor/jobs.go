package processor

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/inboxd/inboxd/inbox"
)

// JobStore is what Jobs needs of the database.
type JobStore interface {
	// RunningJobs returns the jobs that are to be run.
	RunningJobs(ctx context.Context) ([]inbox.Job, error)
	// SelectForJob returns about limit deliveries that come next.
	SelectForJob(ctx context.Context, j *inbox.Job, limit int) (inbox.JobSelection, error)
	// MoveForJob acts on a page and moves the job's cursor, or nothing. ErrConflict: the job is no longer where it
	// was when it was read. ErrRefused: the database refuses a row of the page.
	MoveForJob(ctx context.Context, j *inbox.Job, page inbox.JobPage) (moved int, err error)
	// FailJob ends a job that can't go on.
	FailJob(ctx context.Context, id int64, why string) error
	// JobRooms returns how many deliveries may be added to each handler, most at a paused one.
	JobRooms(ctx context.Context, handlers []int64, most int) ([]inbox.JobRoom, error)
}

// The times and sizes of jobs.
const (
	jobPage    = 500 // deliveries of a transaction: few enough that nobody waits long for a row
	jobPoll    = time.Second
	jobWait    = 50 * time.Millisecond // while handlers have no room
	jobTimeout = 30 * time.Second      // of one turn of one job
)

// JobsConfig is what Jobs is made of; all of it must be set but Logger.
type JobsConfig struct {
	Store      JobStore
	Leading    func() bool // whether this instance leads
	Ready      func()      // called after deliveries were made PENDING
	Registerer prometheus.Registerer
	Logger     zerolog.Logger
}

// Jobs runs the jobs while this instance leads: a page of each in turn, and then a rest of the same length, so
// that the database has half its time for others. How far a job has come is in its row, written with each page,
// so it is safe beside another leader's Jobs, and goes on where a killed one was.
type Jobs struct {
	store   JobStore
	leading func() bool
	ready   func()
	log     zerolog.Logger
	working map[int64]*jobWork // by the job's number

	running    prometheus.Gauge
	deliveries *prometheus.CounterVec
}

// jobWork is what is selected of a job and not acted on yet.
type jobWork struct {
	inbox.JobSelection
	cursor int64 // of the job where the selection begins; if it is another one, the selection is void
	most   int   // messages of a page; fewer after one that failed
}

// NewJobs makes a Jobs.
func NewJobs(cfg JobsConfig) *Jobs {
	j := &Jobs{store: cfg.Store, leading: cfg.Leading, ready: cfg.Ready, log: cfg.Logger, working: make(map[int64]*jobWork)}
	j.running = prometheus.NewGauge(prometheus.GaugeOpts{Name: "inboxd_jobs", Help: "Jobs that are running; the leader's alone."})
	j.deliveries = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "inboxd_job_deliveries_total", Help: "Deliveries that jobs moved, or skipped since they had moved on or were refused.",
	}, []string{"action", "result"})
	cfg.Registerer.MustRegister(j.running, j.deliveries)
	return j
}

// Run runs jobs until ctx is done.
func (j *Jobs) Run(ctx context.Context) error {
	for {
		timer := time.NewTimer(j.turn(ctx))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
	}
}

// turn does a page of each job, and returns how long to rest.
func (j *Jobs) turn(ctx context.Context) time.Duration {
	if !j.leading() {
		j.running.Set(0)
		clear(j.working)
		return jobPoll
	}
	started := time.Now()
	read, cancel := context.WithTimeout(ctx, jobTimeout)
	jobs, err := j.store.RunningJobs(read)
	cancel()
	if err != nil {
		j.complain(ctx, err, "jobs can't be read")
		return jobPoll
	}
	j.running.Set(float64(len(jobs)))
	for id := range j.working {
		if !slices.ContainsFunc(jobs, func(job inbox.Job) bool { return job.ID == id }) {
			delete(j.working, id)
		}
	}
	rest, busy, failed := jobPoll, false, false
	for i := range jobs {
		if ctx.Err() != nil {
			break
		}
		if jobs[i].Wait > 0 {
			rest = min(rest, jobs[i].Wait)
			continue
		}
		acted, err := j.page(ctx, &jobs[i])
		switch {
		case err != nil:
			failed = true
			j.complain(ctx, err, "a page of a job")
		case acted:
			busy = true
		default:
			rest = min(rest, jobWait)
		}
	}
	switch {
	case failed:
		return jobPoll
	case busy:
		return min(rest, time.Since(started))
	}
	return rest
}

func (j *Jobs) complain(ctx context.Context, err error, what string) {
	if ctx.Err() == nil {
		j.log.Warn().Err(err).Msg(what)
	}
}

// page does the next page of a job, and reports whether there was room for one.
func (j *Jobs) page(ctx context.Context, job *inbox.Job) (acted bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, jobTimeout)
	defer cancel()
	if job.Broken {
		return true, j.store.FailJob(ctx, job.ID, "The leader can't read the filter: a newer release wrote it. Make the job again when all instances are of one release.")
	}
	work := j.working[job.ID]
	if work == nil || work.cursor != job.Cursor {
		selection, err := j.store.SelectForJob(ctx, job, jobPage)
		if err != nil {
			return false, err
		}
		work = &jobWork{JobSelection: selection, cursor: job.Cursor, most: jobPage}
		j.working[job.ID] = work
	}
	n, err := j.fitting(ctx, job, work)
	if err != nil {
		return false, err
	}
	if n == 0 && len(work.Messages) > 0 {
		return false, nil
	}
	page := inbox.JobPage{Messages: work.Messages[:n], Cursor: work.Next}
	if n < len(work.Messages) {
		page.Cursor = work.Messages[n-1].ID
	}
	moved, err := j.store.MoveForJob(ctx, job, page)
	if errors.Is(err, inbox.ErrRefused) && n == 1 {
		j.log.Error().Err(err).Int64("job", job.ID).Int64("message", page.Messages[0].ID).Msg("a job skips what the database refuses")
		page.Refused = "The database refused message " + inbox.FormatMessage(page.Messages[0].ID) + ", which was skipped; the log says more."
		moved, err = j.store.MoveForJob(ctx, job, page)
	}
	if err != nil {
		delete(j.working, job.ID)
		if errors.Is(err, inbox.ErrConflict) {
			return true, nil // cancelled, or run by another leader
		}
		if n > 1 {
			// The message that is refused is found by halves; so is a size that the database manages in time.
			work.most = n / 2
			j.working[job.ID] = work
			if errors.Is(err, inbox.ErrRefused) {
				return true, nil
			}
		}
		return false, err
	}
	j.done(job, page, moved)
	work.Messages, work.cursor, work.most = work.Messages[n:], page.Cursor, min(2*work.most, jobPage)
	if len(work.Messages) == 0 {
		delete(j.working, job.ID)
	}
	return true, nil
}

func (j *Jobs) done(job *inbox.Job, page inbox.JobPage, moved int) {
	selected := 0
	for _, m := range page.Messages {
		selected += len(m.Items)
	}
	j.deliveries.WithLabelValues(string(job.Action), "moved").Add(float64(moved))
	j.deliveries.WithLabelValues(string(job.Action), "skipped").Add(float64(selected - moved))
	if moved > 0 && makesWork(job.Action) {
		j.ready()
	}
	if page.Cursor == 0 {
		j.log.Info().Int64("job", job.ID).Msg("a job is done")
	}
}

func makesWork(action inbox.JobAction) bool {
	return action == inbox.JobRetry || action == inbox.JobReplay
}

// fitting returns how many of the selected messages the next page takes: no more than the pace allows in a second,
// and as far as each handler has room.
func (j *Jobs) fitting(ctx context.Context, job *inbox.Job, work *jobWork) (int, error) {
	most := jobPage
	if job.Pace > 0 {
		most = min(most, job.Pace)
	}
	room := make(map[int64]int)
	if makesWork(job.Action) {
		var handlers []int64
		for _, m := range work.Messages {
			for _, item := range m.Items {
				if _, ok := room[item.HandlerID]; !ok {
					room[item.HandlerID] = 0
					handlers = append(handlers, item.HandlerID)
				}
			}
		}
		if len(handlers) > 0 {
			rooms, err := j.store.JobRooms(ctx, handlers, jobPage)
			if err != nil {
				return 0, err
			}
			for _, r := range rooms {
				room[r.HandlerID] = r.Room
			}
		}
	}
	n := 0
	for i, m := range work.Messages[:min(work.most, len(work.Messages))] {
		for _, item := range m.Items {
			if left, limited := room[item.HandlerID]; limited && left <= 0 {
				return i, nil
			} else if limited {
				room[item.HandlerID] = left - 1
			}
		}
		// A message is moved as a whole, so a page may exceed its size by the deliveries of one.
		if n += len(m.Items); n >= most {
			return i + 1, nil
		}
	}
	return min(work.most, len(work.Messages)), nil
}
