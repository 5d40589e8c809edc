package main

import (
	"context"
	"errors"
	"io"
	"net/http"

	"github.com/inboxd/inboxd/client"
)

type parkedCommand struct {
	List    parkedList    `cmd:"" help:"List what is parked, newest message first."`
	Retry   parkedRetry   `cmd:"" help:"Run parked deliveries again: one, or all that flags choose."`
	Done    parkedDone    `cmd:"" help:"Mark parked deliveries as done: one, or all that flags choose."`
	Discard parkedDiscard `cmd:"" help:"Give parked deliveries up: one, or all that flags choose."`
}

type parkedList struct {
	remoteFlags
	pageFlags
	deliveryFilter
}

func (cmd *parkedList) Run(ctx context.Context, c *console) error {
	api, err := cmd.connect()
	if err != nil {
		return err
	}
	parked := client.DeliveryStatus("MANUAL_REQUIRED")
	found, err := cmd.collect(ctx, api, cmd.pageFlags, &parked)
	if err != nil {
		return err
	}
	return cmd.show(c, found, func(w io.Writer) { deliveryTable(w, found.Items) })
}

// parkedAction acts on one delivery, guarded: it fails with exit status 4 if the delivery has moved on since it
// was shown. Without an id it makes a job of all that its filter chooses.
type parkedAction struct {
	remoteFlags
	ID       string `arg:"" optional:"" help:"As lists show it; left out for all that the flags choose."`
	ClaimSeq *int64 `placeholder:"N" help:"With an id: as lists show it; refused if the delivery has moved on since."`
	deliveryFilter
	jobFlags
	Reason *string `placeholder:"TEXT" help:"Why."`
	Note   *string `placeholder:"TEXT" help:"What else the next reader of the audit should know."`
}

// Validate is called once the arguments are parsed.
func (cmd *parkedAction) Validate() error {
	many := cmd.jobFilter() != client.JobFilter{} || cmd.jobFlags != jobFlags{}
	switch {
	case cmd.ID != "" && many, cmd.ID == "" && !many:
		return errOneOrMany
	case (cmd.ID != "") != (cmd.ClaimSeq != nil):
		return errors.New("--claim-seq comes with an id, and an id with --claim-seq")
	}
	return nil
}

func (cmd *parkedAction) act(ctx context.Context, c *console, action client.NewJobAction, call func(api *client.Client, action client.ParkedAction) (*http.Response, error)) error {
	if cmd.ID == "" {
		return cmd.runJob(ctx, c, cmd.jobFlags, client.NewJob{Action: action, Filter: cmd.jobFilter(), Reason: cmd.Reason, Note: cmd.Note})
	}
	api, err := cmd.connect()
	if err != nil {
		return err
	}
	now, err := client.Read[client.Delivery](call(api, client.ParkedAction{ClaimSeq: *cmd.ClaimSeq, Reason: cmd.Reason, Note: cmd.Note}))
	if err != nil {
		return err
	}
	return cmd.show(c, now, func(w io.Writer) { deliveryTable(w, []client.Delivery{now}) })
}

type parkedRetry struct{ parkedAction }

func (cmd *parkedRetry) Run(ctx context.Context, c *console) error {
	return cmd.act(ctx, c, "retry", func(api *client.Client, action client.ParkedAction) (*http.Response, error) {
		return api.RetryDelivery(ctx, cmd.ID, action)
	})
}

type parkedDone struct{ parkedAction }

func (cmd *parkedDone) Run(ctx context.Context, c *console) error {
	return cmd.act(ctx, c, "done", func(api *client.Client, action client.ParkedAction) (*http.Response, error) {
		return api.FinishDelivery(ctx, cmd.ID, action)
	})
}

type parkedDiscard struct{ parkedAction }

func (cmd *parkedDiscard) Run(ctx context.Context, c *console) error {
	return cmd.act(ctx, c, "discard", func(api *client.Client, action client.ParkedAction) (*http.Response, error) {
		return api.DiscardDelivery(ctx, cmd.ID, action)
	})
}
