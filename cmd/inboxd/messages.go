package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/inboxd/inboxd/client"
)

type messagesCommand struct {
	List     messagesList     `cmd:"" help:"List messages, newest first."`
	Get      messagesGet      `cmd:"" help:"Show a message with its deliveries; with --json also its headers and body."`
	Timeline messagesTimeline `cmd:"" help:"Show what happened to a message."`
}

// filterFlags are the filters that messages and deliveries have in common.
type filterFlags struct {
	Source      *string    `placeholder:"NAME" help:"Of this source."`
	Handler     *string    `placeholder:"NAME" help:"For this handler."`
	Type        *string    `placeholder:"T" help:"Of this message type."`
	MessageID   *string    `placeholder:"ID" help:"With this id of the provider."`
	BizKey      *string    `placeholder:"KEY" help:"With this business key."`
	OrderingKey *string    `placeholder:"KEY" help:"With this ordering key."`
	From        *time.Time `placeholder:"TIME" help:"Received at or after this time (RFC 3339)."`
	To          *time.Time `placeholder:"TIME" help:"Received before this time (RFC 3339)."`
}

type messagesList struct {
	remoteFlags
	pageFlags
	filterFlags
	Status *client.Status `placeholder:"S" help:"In this status."`
}

func (cmd *messagesList) Run(ctx context.Context, c *console) error {
	api, err := cmd.connect()
	if err != nil {
		return err
	}
	found, err := collect(cmd.pageFlags, func(cursor *string, limit int) ([]client.Message, *string, error) {
		page, err := client.Read[client.MessageList](api.ListMessages(ctx, &client.ListMessagesParams{
			Status: cmd.Status, Source: cmd.Source, Handler: cmd.Handler, MessageType: cmd.Type, MessageID: cmd.MessageID,
			BizKey: cmd.BizKey, OrderingKey: cmd.OrderingKey, From: cmd.From, To: cmd.To, Cursor: cursor, Limit: &limit,
		}))
		return page.Items, page.Next, err
	})
	if err != nil {
		return err
	}
	return cmd.show(c, found, func(w io.Writer) { messageTable(w, found.Items) })
}

func messageTable(w io.Writer, messages []client.Message) {
	fmt.Fprintln(w, "ID\tRECEIVED\tSOURCE\tTYPE\tMESSAGE ID\tKEY\tSTATUS")
	for _, m := range messages {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", m.ID, stamp(m.ReceivedAt), m.Source, foreign(m.MessageType), foreign(m.MessageID), orDash(m.BizKey), m.Status)
	}
}

type messagesGet struct {
	remoteFlags
	ID string `arg:"" help:"The message's number."`
}

func (cmd *messagesGet) Run(ctx context.Context, c *console) error {
	api, err := cmd.connect()
	if err != nil {
		return err
	}
	found, err := client.Read[client.MessageDetail](api.GetMessage(ctx, cmd.ID))
	if err != nil {
		return err
	}
	return cmd.show(c, found, func(w io.Writer) {
		messageTable(w, []client.Message{found.Message})
		fmt.Fprintln(w)
		deliveryTable(w, found.Deliveries)
	})
}

type messagesTimeline struct {
	remoteFlags
	ID string `arg:"" help:"The message's number."`
}

func (cmd *messagesTimeline) Run(ctx context.Context, c *console) error {
	api, err := cmd.connect()
	if err != nil {
		return err
	}
	found, err := client.Read[client.Timeline](api.GetTimeline(ctx, cmd.ID))
	if err != nil {
		return err
	}
	return cmd.show(c, found, func(w io.Writer) {
		fmt.Fprintln(w, "AT\tEVENT\tHANDLER\tDETAIL")
		for _, e := range found.Events {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", stamp(e.At), e.Kind, orDash(e.Handler), eventDetail(e))
		}
		for _, n := range found.NotRouted {
			fmt.Fprintf(w, "-\tnot routed\t%s\t%s\n", n.Handler, foreign(n.Reason))
		}
	})
}

// eventDetail also says who acted, by which job, and why.
func eventDetail(e client.Event) foreign {
	detail := orDash(e.Detail)
	if e.Actor != nil {
		detail += foreign(" by " + *e.Actor)
	}
	if e.Job != nil {
		detail += foreign(", job " + *e.Job)
	}
	if e.Reason != nil {
		detail += foreign(": " + *e.Reason)
	}
	return detail
}

type lookupCommand struct {
	remoteFlags
	pageFlags
	Key string `arg:"" help:"A business key, an ordering key or a provider's id."`
}

func (cmd *lookupCommand) Run(ctx context.Context, c *console) error {
	api, err := cmd.connect()
	if err != nil {
		return err
	}
	found, err := collect(cmd.pageFlags, func(cursor *string, limit int) ([]client.Found, *string, error) {
		page, err := client.Read[client.FoundList](api.LookUp(ctx, &client.LookUpParams{Key: cmd.Key, Cursor: cursor, Limit: &limit}))
		return page.Items, page.Next, err
	})
	if err != nil {
		return err
	}
	return cmd.show(c, found, func(w io.Writer) {
		var messages []client.Message
		var deliveries []client.Delivery
		for _, f := range found.Items {
			messages, deliveries = append(messages, f.Message), append(deliveries, f.Deliveries...)
		}
		messageTable(w, messages)
		fmt.Fprintln(w)
		deliveryTable(w, deliveries)
	})
}
