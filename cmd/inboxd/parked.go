package main

import (
	"context"
	"io"
	"net/http"

	"github.com/inboxd/inboxd/client"
)

type parkedCommand struct {
	List    parkedList    `cmd:"" help:"List what is parked, newest message first."`
	Retry   parkedRetry   `cmd:"" help:"Run a parked delivery again."`
	Done    parkedDone    `cmd:"" help:"Mark a parked delivery as done."`
	Discard parkedDiscard `cmd:"" help:"Give a parked delivery up."`
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

// parkedAction is guarded: it fails with exit status 4 if the delivery has moved on since it was shown.
type parkedAction struct {
	remoteFlags
	ID       string  `arg:"" help:"As lists show it."`
	ClaimSeq int64   `required:"" placeholder:"N" help:"As lists show it; refused if the delivery has moved on since."`
	Reason   *string `placeholder:"TEXT" help:"Why."`
}

func (cmd *parkedAction) act(c *console, call func(api *client.Client, action client.ParkedAction) (*http.Response, error)) error {
	api, err := cmd.connect()
	if err != nil {
		return err
	}
	now, err := client.Read[client.Delivery](call(api, client.ParkedAction{ClaimSeq: cmd.ClaimSeq, Reason: cmd.Reason}))
	if err != nil {
		return err
	}
	return cmd.show(c, now, func(w io.Writer) { deliveryTable(w, []client.Delivery{now}) })
}

type parkedRetry struct{ parkedAction }

func (cmd *parkedRetry) Run(ctx context.Context, c *console) error {
	return cmd.act(c, func(api *client.Client, action client.ParkedAction) (*http.Response, error) {
		return api.RetryDelivery(ctx, cmd.ID, action)
	})
}

type parkedDone struct{ parkedAction }

func (cmd *parkedDone) Run(ctx context.Context, c *console) error {
	return cmd.act(c, func(api *client.Client, action client.ParkedAction) (*http.Response, error) {
		return api.FinishDelivery(ctx, cmd.ID, action)
	})
}

type parkedDiscard struct{ parkedAction }

func (cmd *parkedDiscard) Run(ctx context.Context, c *console) error {
	return cmd.act(c, func(api *client.Client, action client.ParkedAction) (*http.Response, error) {
		return api.DiscardDelivery(ctx, cmd.ID, action)
	})
}
