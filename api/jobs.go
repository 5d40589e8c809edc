package api

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/inboxd/inboxd/inbox"
)

// JobStore keeps the jobs. The leader runs them.
type JobStore interface {
	CreateJob(ctx context.Context, by inbox.Actor, j *inbox.Job) error
	// PlanJob counts what the job would move, and changes nothing.
	PlanJob(ctx context.Context, j *inbox.Job) (inbox.JobPlan, error)
	Job(ctx context.Context, id int64) (inbox.Job, error)
	ListJobs(ctx context.Context, status inbox.JobStatus, token, after int64, limit int) ([]inbox.Job, error)
	CancelJob(ctx context.Context, by inbox.Actor, id int64) (inbox.Job, error)
}

// CreateJob implements the operation.
func (s *server) CreateJob(ctx context.Context, request CreateJobRequestObject) (CreateJobResponseObject, error) {
	in := request.Body
	job, err := s.newJob(ctx, in)
	if err != nil {
		return nil, err
	}
	if or(in.DryRun, false) {
		plan, err := s.store.PlanJob(ctx, job)
		if err != nil {
			return nil, err
		}
		return CreateJob200JSONResponse(showPlan(plan)), nil
	}
	if err := s.store.CreateJob(ctx, because(actor(ctx), &Reason{Reason: in.Reason, Note: in.Note}), job); err != nil {
		return nil, err
	}
	return CreateJob201JSONResponse(showJob(job)), nil
}

// newJob refuses a filter that would choose more than its author can have meant.
func (s *server) newJob(ctx context.Context, in *NewJob) (*inbox.Job, error) {
	f := in.Filter
	filter, err := s.filter(ctx, filterParams{
		source: f.Source, handler: f.Handler, messageType: f.MessageType, messageID: f.MessageID, bizKey: f.BizKey,
		orderingKey: f.OrderingKey, from: f.From.std(), to: f.To.std(),
	})
	if err != nil {
		return nil, inFilter(err)
	}
	filter.ErrorClass, filter.ResponseStatus = inbox.Class(or(f.ErrorClass, "")), or(f.ResponseStatus, 0)
	named := f != JobFilter{Status: f.Status, All: f.All}
	switch all := or(f.All, false); {
	case !named && !all:
		return nil, invalid("filter", "must name something beside the status; all: true chooses everything")
	case named && all:
		return nil, invalid("filter.all", "can't be true while something is named")
	}
	filter.Status = inbox.Status(or(f.Status, ""))
	job := &inbox.Job{Action: inbox.JobAction(in.Action), Pace: or(in.Pace, 0), Source: or(f.Source, ""), Handler: or(f.Handler, "")}
	if job.Action != inbox.JobReplay {
		if in.ToHandler != nil {
			return nil, invalid("to_handler", "is for replay alone")
		}
		if filter.Status != "" && filter.Status != inbox.ManualRequired {
			return nil, invalid("filter.status", "must be MANUAL_REQUIRED or left out: the action is for what is parked")
		}
		filter.Status = inbox.ManualRequired
	}
	if job.Filter = filter; job.Action == inbox.JobReplay {
		err = s.checkReplay(ctx, in, job)
	}
	return job, err
}

func (s *server) checkReplay(ctx context.Context, in *NewJob, job *inbox.Job) error {
	f := &job.Filter
	if !f.Status.Finished() {
		return invalid("filter.status", "must be DONE, DISCARDED, UNROUTED or DUPLICATE: what is replayed has ended")
	}
	if in.ToHandler != nil {
		h, err := s.store.Handler(ctx, *in.ToHandler)
		if errors.Is(err, inbox.ErrNotFound) || err == nil && !within(ctx).Handler(h.ID) {
			return invalid("to_handler", fmt.Sprintf("no handler has the name %q", *in.ToHandler))
		}
		if err != nil {
			return err
		}
		job.ToHandler, job.ToHandlerName = h.ID, h.Name
	}
	if f.Status == inbox.Unrouted || f.Status == inbox.Duplicate {
		for field, given := range map[string]bool{
			"filter.handler": f.HandlerID != 0, "filter.error_class": f.ErrorClass != "", "filter.response_status": f.ResponseStatus != 0,
		} {
			if given {
				return invalid(field, fmt.Sprintf("is of deliveries, and a message that is %s has none; to_handler says where it is to go", f.Status))
			}
		}
		return nil
	}
	if job.ToHandler != 0 && f.HandlerID != 0 && f.HandlerID != job.ToHandler {
		return invalid("to_handler", "must be the filter's handler: a delivery that has ended is replayed to its own handler")
	}
	return nil
}

// inFilter says that the fields of a problem are the filter's.
func inFilter(err error) error {
	if e, ok := errors.AsType[*apiError](err); ok {
		for i := range e.fields {
			e.fields[i].Field = "filter." + e.fields[i].Field
		}
	}
	return err
}

// ListJobs implements the operation.
func (s *server) ListJobs(ctx context.Context, request ListJobsRequestObject) (ListJobsResponseObject, error) {
	status := inbox.JobStatus(or(request.Params.Status, ""))
	var after int64
	if request.Params.Cursor != nil {
		position, err := openCursor("jobs", status, *request.Params.Cursor)
		if err != nil {
			return nil, err
		}
		if after, err = strconv.ParseInt(position, 10, 64); err != nil || after <= 0 {
			return nil, badCursor("isn't a cursor of this server")
		}
	}
	limit := or(request.Params.Limit, defaultLimit)
	jobs, err := s.store.ListJobs(ctx, status, ownJobs(ctx), after, limit+1)
	if err != nil {
		return nil, err
	}
	list := ListJobs200JSONResponse{Items: []Job{}}
	if len(jobs) > limit {
		jobs = jobs[:limit]
		list.Next = sealCursor("jobs", status, strconv.FormatInt(jobs[limit-1].ID, 10))
	}
	for i := range jobs {
		list.Items = append(list.Items, showJob(&jobs[i]))
	}
	return list, nil
}

// GetJob implements the operation.
func (s *server) GetJob(ctx context.Context, request GetJobRequestObject) (GetJobResponseObject, error) {
	id, err := jobNumber(request.ID)
	if err != nil {
		return nil, orNotFound(err, "job", request.ID)
	}
	j, err := s.store.Job(ctx, id)
	if err != nil {
		return nil, orNotFound(err, "job", request.ID)
	}
	return GetJob200JSONResponse(showJob(&j)), nil
}

// CancelJob implements the operation.
func (s *server) CancelJob(ctx context.Context, request CancelJobRequestObject) (CancelJobResponseObject, error) {
	id, err := jobNumber(request.ID)
	if err != nil {
		return nil, orNotFound(err, "job", request.ID)
	}
	j, err := s.store.CancelJob(ctx, because(actor(ctx), request.Body), id)
	if err != nil {
		return nil, orNotFound(err, "job", request.ID)
	}
	return CancelJob200JSONResponse(showJob(&j)), nil
}

func jobNumber(text string) (int64, error) {
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil || id <= 0 || id == math.MaxInt64 || strconv.FormatInt(id, 10) != text {
		return 0, inbox.ErrNotFound
	}
	return id, nil
}

// someNumber returns nil for 0.
func someNumber(id int64) *string {
	if id == 0 {
		return nil
	}
	return some(strconv.FormatInt(id, 10))
}

func showJob(j *inbox.Job) Job {
	f := j.Filter
	filter := JobFilter{
		Status: some(JobFilterStatus(f.Status)), Source: some(j.Source), Handler: some(j.Handler), MessageType: some(f.MessageType),
		MessageID: some(f.MessageID), BizKey: some(f.BizKey), OrderingKey: some(f.OrderingKey), ErrorClass: some(JobFilterErrorClass(f.ErrorClass)),
		ResponseStatus: some(f.ResponseStatus), From: bodyTime(f.From), To: bodyTime(f.To),
	}
	filter.All = some(filter == JobFilter{Status: filter.Status})
	return Job{
		ID: strconv.FormatInt(j.ID, 10), Action: JobAction(j.Action), ToHandler: some(j.ToHandlerName), Pace: j.Pace, Status: JobStatus(j.Status),
		Error: some(j.Error), CreatedAt: j.CreatedAt.UTC(), FinishedAt: someTime(j.FinishedAt), By: j.By.Name, Reason: some(j.By.Reason),
		Note: some(j.By.Note), Selected: j.Selected, Moved: j.Moved, Skipped: j.Skipped, Progress: j.Progress(),
		Filter: filter,
	}
}

func showPlan(p inbox.JobPlan) JobPlan {
	plan := JobPlan{Deliveries: p.Deliveries, AtLeast: some(p.AtLeast), Groups: make([]JobGroup, len(p.Groups))}
	for i, g := range p.Groups {
		plan.Groups[i] = JobGroup{Handler: g.Handler, MessageType: g.MessageType, Deliveries: g.Deliveries}
	}
	return plan
}
