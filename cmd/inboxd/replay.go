package main

import (
	"context"
	"errors"
	"io"

	"github.com/inboxd/inboxd/client"
)

// replayCommand delivers one message again, or makes a job of all that its filter chooses.
type replayCommand struct {
	remoteFlags
	Message   string                  `arg:"" optional:"" help:"The message's number; left out for all that the flags choose."`
	ToHandler []string                `placeholder:"NAME,…" help:"Only to these handlers; to one, if it is for many messages."`
	Status    *client.JobFilterStatus `placeholder:"S" help:"What has ended in this status: DONE, DISCARDED, UNROUTED or DUPLICATE."`
	deliveryFilter
	jobFlags
	Reason *string `placeholder:"TEXT" help:"Why."`
	Note   *string `placeholder:"TEXT" help:"What else the next reader of the audit should know."`
}

// Validate is called once the arguments are parsed.
func (cmd *replayCommand) Validate() error {
	many := cmd.jobFilter() != client.JobFilter{} || cmd.All || cmd.Pace > 0 || cmd.Detach || cmd.Status != nil
	switch {
	case cmd.Message != "" && many, cmd.Message == "" && !many:
		return errOneOrMany
	case many && cmd.Status == nil:
		return errors.New("--status says what to replay: DONE, DISCARDED, UNROUTED or DUPLICATE")
	case many && len(cmd.ToHandler) > 1:
		return errors.New("many messages go to each handler that had them, or to one")
	}
	return nil
}

func (cmd *replayCommand) Run(ctx context.Context, c *console) error {
	if cmd.Message == "" {
		job := client.NewJob{Action: "replay", Filter: cmd.jobFilter(), Reason: cmd.Reason, Note: cmd.Note}
		job.Filter.Status = cmd.Status
		if len(cmd.ToHandler) > 0 {
			job.ToHandler = &cmd.ToHandler[0]
		}
		return cmd.runJob(ctx, c, cmd.jobFlags, job)
	}
	api, err := cmd.connect()
	if err != nil {
		return err
	}
	found, err := client.Read[client.Replayed](api.ReplayMessage(ctx, cmd.Message, client.Replay{Handlers: cmd.ToHandler, DryRun: &cmd.DryRun, Reason: cmd.Reason, Note: cmd.Note}))
	if err != nil {
		return err
	}
	return cmd.show(c, found, func(w io.Writer) { deliveryTable(w, found.Deliveries) })
}
