package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/inboxd/inboxd/client"
)

type jobsCommand struct {
	List   jobsList   `cmd:"" help:"List jobs, the latest first."`
	Get    jobsGet    `cmd:"" help:"Show a job."`
	Cancel jobsCancel `cmd:"" help:"End a job. What it has moved stays moved."`
}

type jobsList struct {
	remoteFlags
	pageFlags
	Status *client.JobStatus `placeholder:"S" help:"In this status: running, done, cancelled or failed."`
}

func (cmd *jobsList) Run(ctx context.Context, c *console) error {
	api, err := cmd.connect()
	if err != nil {
		return err
	}
	found, err := collect(cmd.pageFlags, func(cursor *string, limit int) ([]client.Job, *string, error) {
		page, err := client.Read[client.JobList](api.ListJobs(ctx, &client.ListJobsParams{Status: cmd.Status, Cursor: cursor, Limit: &limit}))
		return page.Items, page.Next, err
	})
	if err != nil {
		return err
	}
	return cmd.show(c, found, func(w io.Writer) { jobTable(w, found.Items) })
}

type jobsGet struct {
	remoteFlags
	ID string `arg:"" help:"The job's number."`
}

func (cmd *jobsGet) Run(ctx context.Context, c *console) error {
	return cmd.showJob(c, func(api *client.Client) (*http.Response, error) { return api.GetJob(ctx, cmd.ID) })
}

type jobsCancel struct {
	remoteFlags
	ID     string  `arg:"" help:"The job's number."`
	Reason *string `placeholder:"TEXT" help:"Why."`
}

func (cmd *jobsCancel) Run(ctx context.Context, c *console) error {
	return cmd.showJob(c, func(api *client.Client) (*http.Response, error) {
		return api.CancelJob(ctx, cmd.ID, client.Reason{Reason: cmd.Reason})
	})
}

func (f *remoteFlags) showJob(c *console, call func(api *client.Client) (*http.Response, error)) error {
	api, err := f.connect()
	if err != nil {
		return err
	}
	job, err := client.Read[client.Job](call(api))
	if err != nil {
		return err
	}
	return f.show(c, job, func(w io.Writer) { jobTable(w, []client.Job{job}) })
}

func jobTable(w io.Writer, jobs []client.Job) {
	fmt.Fprintln(w, "ID\tCREATED\tBY\tACTION\tHANDLER\tSTATUS\tPROGRESS\tMOVED\tSKIPPED\tERROR")
	for _, j := range jobs {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t%s\n", j.ID, stamp(j.CreatedAt), j.By, j.Action, orDash(j.Filter.Handler), j.Status,
			percent(j.Progress), j.Moved, j.Skipped, orDash(j.Error))
	}
}

func percent(part float64) string { return fmt.Sprintf("%d%%", int(100*part)) }

// jobFlags are what makes a command act on many deliveries.
type jobFlags struct {
	All    bool `help:"Name nothing, and mean everything."`
	DryRun bool `help:"Change nothing; say what it would be, of many how many by handler and type."`
	Pace   int  `placeholder:"N" help:"Deliveries per second at most."`
	Detach bool `help:"Don't wait for the job's end."`
}

// runJob creates a job and follows it to its end, or shows what it would do.
func (f *remoteFlags) runJob(ctx context.Context, c *console, flags jobFlags, job client.NewJob) error {
	api, err := f.connect()
	if err != nil {
		return err
	}
	if flags.All {
		job.Filter.All = &flags.All
	}
	if flags.Pace != 0 {
		job.Pace = &flags.Pace
	}
	if flags.DryRun {
		job.DryRun = &flags.DryRun
		plan, err := client.Read[client.JobPlan](api.CreateJob(ctx, job))
		if err != nil {
			return err
		}
		return f.show(c, plan, func(w io.Writer) { planTable(w, plan) })
	}
	made, err := client.Read[client.Job](api.CreateJob(ctx, job))
	if err == nil && !flags.Detach {
		made, err = followJob(ctx, c, api, made)
	}
	if err != nil {
		return err
	}
	if err := f.show(c, made, func(w io.Writer) { jobTable(w, []client.Job{made}) }); err != nil {
		return err
	}
	if made.Status == client.JobFailed || made.Status == client.JobCancelled {
		return exitError(1)
	}
	return nil
}

func planTable(w io.Writer, plan client.JobPlan) {
	least := ""
	if plan.AtLeast != nil && *plan.AtLeast {
		least = "at least "
	}
	fmt.Fprintln(w, "HANDLER\tTYPE\tDELIVERIES")
	for _, g := range plan.Groups {
		fmt.Fprintf(w, "%s\t%s\t%s%d\n", g.Handler, foreign(g.MessageType), least, g.Deliveries)
	}
	fmt.Fprintf(w, "all\t\t%s%d\n", least, plan.Deliveries)
}

// followEvery is how often a job's progress is asked for.
const followEvery = 500 * time.Millisecond

// followJob waits for a job's end, with a line of progress on a terminal. Whoever stops waiting doesn't stop the job.
func followJob(ctx context.Context, c *console, api *client.Client, job client.Job) (client.Job, error) {
	terminal := isTerminal(c.err)
	for job.Status == client.JobRunning {
		if terminal {
			fmt.Fprintf(c.err, "\rJob %s: %s, %d moved, %d skipped ", job.ID, percent(job.Progress), job.Moved, job.Skipped)
		}
		timer := time.NewTimer(followEvery)
		select {
		case <-ctx.Done():
			timer.Stop()
		case <-timer.C:
		}
		next, err := client.Read[client.Job](api.GetJob(ctx, job.ID))
		if err != nil {
			if terminal {
				fmt.Fprintln(c.err)
			}
			return job, fmt.Errorf("job %s was created and goes on, see `inboxd jobs get %s`: %w", job.ID, job.ID, err)
		}
		job = next
	}
	if terminal {
		fmt.Fprint(c.err, "\r\x1b[K") // the line goes; the table has it all
	}
	return job, nil
}

func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// errOneOrMany says that a command acts on one thing or by a filter.
var errOneOrMany = errors.New("give an id, or flags that choose, such as --handler; not both")
