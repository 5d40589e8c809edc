package main

import (
	"context"
	"fmt"
	"io"

	"github.com/inboxd/inboxd/client"
)

type deliveriesCommand struct {
	List deliveriesList `cmd:"" help:"List deliveries, newest message first."`
	Get  deliveriesGet  `cmd:"" help:"Show a delivery with its failed attempts."`
}

// deliveryFilter is what deliveries are chosen by, beside their status.
type deliveryFilter struct {
	filterFlags
	ErrorClass     *client.ListDeliveriesParamsErrorClass `placeholder:"CLASS" help:"With an attempt that failed in this way."`
	ResponseStatus *int                                   `placeholder:"N" help:"With an attempt that was answered so."`
}

func (f *deliveryFilter) collect(ctx context.Context, api *client.Client, pages pageFlags, status *client.DeliveryStatus) (list[client.Delivery], error) {
	return collect(pages, func(cursor *string, limit int) ([]client.Delivery, *string, error) {
		page, err := client.Read[client.DeliveryList](api.ListDeliveries(ctx, &client.ListDeliveriesParams{
			Status: status, Source: f.Source, Handler: f.Handler, MessageType: f.Type, MessageID: f.MessageID, BizKey: f.BizKey,
			OrderingKey: f.OrderingKey, ErrorClass: f.ErrorClass, ResponseStatus: f.ResponseStatus, From: f.From, To: f.To,
			Cursor: cursor, Limit: &limit,
		}))
		return page.Items, page.Next, err
	})
}

// jobFilter is the filter as jobs take it.
func (f *deliveryFilter) jobFilter() client.JobFilter {
	return client.JobFilter{
		Source: f.Source, Handler: f.Handler, MessageType: f.Type, MessageID: f.MessageID, BizKey: f.BizKey, OrderingKey: f.OrderingKey,
		ErrorClass: (*client.JobFilterErrorClass)(f.ErrorClass), ResponseStatus: f.ResponseStatus, From: f.From, To: f.To,
	}
}

type deliveriesList struct {
	remoteFlags
	pageFlags
	deliveryFilter
	Status *client.DeliveryStatus `placeholder:"S" help:"In this status."`
}

func (cmd *deliveriesList) Run(ctx context.Context, c *console) error {
	api, err := cmd.connect()
	if err != nil {
		return err
	}
	found, err := cmd.collect(ctx, api, cmd.pageFlags, cmd.Status)
	if err != nil {
		return err
	}
	return cmd.show(c, found, func(w io.Writer) { deliveryTable(w, found.Items) })
}

func deliveryTable(w io.Writer, deliveries []client.Delivery) {
	fmt.Fprintln(w, "ID\tHANDLER\tSOURCE\tMESSAGE ID\tSTATUS\tRETRIES\tCLAIM SEQ\tLAST ERROR")
	for _, d := range deliveries {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d/%d\t%d\t%s\n",
			d.ID, d.Handler, d.Source, foreign(d.MessageID), d.Status, d.RetryCount, d.MaxRetryCount, d.ClaimSeq, orDash(d.LastError))
	}
}

type deliveriesGet struct {
	remoteFlags
	ID string `arg:"" help:"As lists show it."`
}

func (cmd *deliveriesGet) Run(ctx context.Context, c *console) error {
	api, err := cmd.connect()
	if err != nil {
		return err
	}
	found, err := client.Read[client.DeliveryDetail](api.GetDelivery(ctx, cmd.ID))
	if err != nil {
		return err
	}
	return cmd.show(c, found, func(w io.Writer) {
		deliveryTable(w, []client.Delivery{found.Delivery})
		fmt.Fprintln(w)
		fmt.Fprintln(w, "FINISHED\tCLASS\tERROR")
		for _, a := range found.Attempts {
			fmt.Fprintf(w, "%s\t%s\t%s\n", stamp(a.FinishedAt), a.Class, foreign(a.Error))
		}
	})
}
