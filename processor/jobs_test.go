package processor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/inboxd/inboxd/inbox"
)

// jobFake is a database with one job, whose messages have one delivery each, by the handlers in turn.
type jobFake struct {
	job     inbox.Job
	handler func(message int64) int64
	room    map[int64]int
	refused int64 // the message that the database refuses
	moved   []int64
	pages   []int // how many deliveries each page moved
	err     error // what every page fails with
	selects int
}

func (f *jobFake) RunningJobs(context.Context) ([]inbox.Job, error) {
	if f.job.Status != inbox.JobRunning {
		return nil, nil
	}
	return []inbox.Job{f.job}, nil
}

func (f *jobFake) SelectForJob(_ context.Context, j *inbox.Job, limit int) (s inbox.JobSelection, _ error) {
	f.selects++
	for id := j.Cursor - 1; id > 0 && len(s.Messages) < limit; id-- {
		s.Messages = append(s.Messages, inbox.JobMessage{ID: id, Items: []inbox.JobItem{{HandlerID: f.handler(id)}}})
		if s.Next = id; id == 1 {
			s.Next = 0
		}
	}
	return s, nil
}

func (f *jobFake) MoveForJob(_ context.Context, j *inbox.Job, page inbox.JobPage) (int, error) {
	switch {
	case f.err != nil:
		return 0, f.err
	case j.Cursor != f.job.Cursor || f.job.Status != inbox.JobRunning:
		return 0, inbox.ErrConflict
	}
	moved := 0
	for _, m := range page.Messages {
		if page.Refused != "" {
			continue
		}
		if m.ID == f.refused {
			return 0, fmt.Errorf("a row: %w", inbox.ErrRefused)
		}
		moved++
	}
	if moved > 0 {
		f.pages = append(f.pages, moved)
		for _, m := range page.Messages {
			f.moved = append(f.moved, m.ID)
		}
	}
	f.job.Cursor = page.Cursor
	if page.Refused != "" {
		f.job.Error = page.Refused
	}
	if page.Cursor == 0 {
		f.job.Status = inbox.JobEnded
	}
	return moved, nil
}

func (f *jobFake) FailJob(_ context.Context, _ int64, why string) error {
	f.job.Status, f.job.Error = inbox.JobFailed, why
	return nil
}

func (f *jobFake) JobRooms(_ context.Context, handlers []int64, most int) (rooms []inbox.JobRoom, _ error) {
	for _, h := range handlers {
		room, ok := f.room[h]
		if !ok {
			room = most
		}
		rooms = append(rooms, inbox.JobRoom{HandlerID: h, Room: room})
	}
	return rooms, nil
}

func newJobFake(messages int64) *jobFake {
	return &jobFake{
		job:     inbox.Job{ID: 1, Action: inbox.JobRetry, Status: inbox.JobRunning, Cursor: messages + 1, Top: messages + 1},
		handler: func(int64) int64 { return 1 }, room: map[int64]int{},
	}
}

func newTestJobs(f *jobFake, leading func() bool) (jobs *Jobs, ready *int) {
	ready = new(int)
	return NewJobs(JobsConfig{Store: f, Leading: leading, Ready: func() { *ready++ }, Registerer: prometheus.NewRegistry()}), ready
}

func yes() bool { return true }

// countdown is the numbers from n down to 1.
func countdown(n int64) []int64 {
	var list []int64
	for ; n > 0; n-- {
		list = append(list, n)
	}
	return list
}

func TestJobsMoveEverythingOnce(t *testing.T) {
	f := newJobFake(1234)
	jobs, ready := newTestJobs(f, yes)
	for range 4 {
		jobs.turn(t.Context())
	}
	if f.job.Status != inbox.JobEnded || !slices.Equal(f.moved, countdown(1234)) || !slices.Equal(f.pages, []int{500, 500, 234}) || *ready != 3 {
		t.Errorf("the job is %+v after pages of %v; Ready was called %d times", f.job, f.pages, *ready)
	}
	if n := testutil.ToFloat64(jobs.deliveries.WithLabelValues("retry", "moved")); n != 1234 {
		t.Errorf("%v deliveries were counted", n)
	}
	if n := testutil.ToFloat64(jobs.running); n != 0 || len(jobs.working) != 0 {
		t.Errorf("%v jobs are running, %d remembered", n, len(jobs.working))
	}
}

func TestJobsOnlyWhileLeading(t *testing.T) {
	f := newJobFake(1000)
	leading := false
	jobs, _ := newTestJobs(f, func() bool { return leading })
	jobs.turn(t.Context())
	leading = true
	jobs.turn(t.Context())
	leading = false
	jobs.turn(t.Context())
	if !slices.Equal(f.pages, []int{500}) || len(jobs.working) != 0 {
		t.Errorf("pages of %v, want one: while it led", f.pages)
	}
	if n := testutil.ToFloat64(jobs.running); n != 0 {
		t.Errorf("%v jobs are running at one that doesn't lead", n)
	}
}

// TestJobsLeaveRoom: no page adds more to a handler than it has room for.
func TestJobsLeaveRoom(t *testing.T) {
	f := newJobFake(20)
	f.handler = func(id int64) int64 { return 1 + id%2 }
	f.room = map[int64]int{1: 3, 2: 500}
	jobs, _ := newTestJobs(f, yes)
	jobs.turn(t.Context()) // 20, 19 … 15: three of handler 1; then its fourth has no room
	f.room[1] = 0
	if rest := jobs.turn(t.Context()); rest != jobWait {
		// Number 13 is handler 2's, but 14 comes first.
		t.Errorf("without room it rests for %s, want %s", rest, jobWait)
	}
	f.room[1] = -2
	jobs.turn(t.Context())
	if !slices.Equal(f.pages, []int{6}) {
		t.Errorf("pages of %v, want one of 6", f.pages)
	}
	f.room[1] = 500
	jobs.turn(t.Context())
	if f.job.Status != inbox.JobEnded || !slices.Equal(f.moved, countdown(20)) || f.selects != 1 {
		t.Errorf("the job is %+v, %d selections", f.job, f.selects)
	}

	// What ends deliveries makes no work.
	f = newJobFake(20)
	f.job.Action, f.room[1] = inbox.JobDiscard, 0
	jobs, ready := newTestJobs(f, yes)
	jobs.turn(t.Context())
	if f.job.Status != inbox.JobEnded || *ready != 0 {
		t.Errorf("the discard is %+v; Ready was called %d times", f.job, *ready)
	}
}

func TestJobsKeepPace(t *testing.T) {
	f := newJobFake(10)
	f.job.Pace = 4
	jobs, _ := newTestJobs(f, yes)
	jobs.turn(t.Context())
	f.job.Wait = jobWait
	if rest := jobs.turn(t.Context()); rest != jobWait {
		t.Errorf("it rests for %s, want until the pace allows more", rest)
	}
	f.job.Wait = 0
	jobs.turn(t.Context())
	jobs.turn(t.Context())
	if !slices.Equal(f.pages, []int{4, 4, 2}) || f.selects != 1 {
		t.Errorf("pages of %v from %d selections", f.pages, f.selects)
	}
}

// TestJobsSkipWhatIsRefused: one row that the database refuses costs itself, not the job.
func TestJobsSkipWhatIsRefused(t *testing.T) {
	f := newJobFake(1000)
	f.refused = 700
	jobs, _ := newTestJobs(f, yes)
	for range 100 {
		jobs.turn(t.Context())
	}
	want := slices.DeleteFunc(countdown(1000), func(id int64) bool { return id == 700 })
	if f.job.Status != inbox.JobEnded || !slices.Equal(f.moved, want) || f.job.Error == "" {
		t.Errorf("the job is %+v, %d were moved", f.job, len(f.moved))
	}
	if n := testutil.ToFloat64(jobs.deliveries.WithLabelValues("retry", "skipped")); n != 1 {
		t.Errorf("%v were counted as skipped", n)
	}
}

func TestJobsOutlastTheDatabase(t *testing.T) {
	f := newJobFake(1000)
	f.err = inbox.ErrUnavailable
	jobs, _ := newTestJobs(f, yes)
	for range 20 {
		if rest := jobs.turn(t.Context()); rest != jobPoll {
			t.Fatalf("without a database it rests for %s", rest)
		}
	}
	// A page whose commit nobody knows of was committed: the row says so.
	f.err, f.job.Cursor = nil, 900
	for range 20 {
		jobs.turn(t.Context())
	}
	if f.job.Status != inbox.JobEnded || !slices.Equal(f.moved, countdown(899)) {
		t.Errorf("the job is %+v, %d were moved", f.job, len(f.moved))
	}
}

func TestJobsFailWhatTheyCantRead(t *testing.T) {
	f := newJobFake(10)
	f.job.Broken = true
	jobs, _ := newTestJobs(f, yes)
	jobs.turn(t.Context())
	if f.job.Status != inbox.JobFailed || f.job.Error == "" || len(f.moved) != 0 {
		t.Errorf("the job is %+v", f.job)
	}
}

func TestJobsEndWithTheirContext(t *testing.T) {
	f := newJobFake(10)
	f.err = errors.New("not now")
	jobs, _ := newTestJobs(f, yes)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := jobs.Run(ctx); err != nil {
		t.Errorf("Run = %v", err)
	}
}
