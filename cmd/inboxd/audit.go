package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/inboxd/inboxd/client"
)

type auditCommand struct {
	remoteFlags
	pageFlags
	Actor   *string    `placeholder:"NAME" help:"By this token, or who acted without one."`
	Action  *string    `placeholder:"A" help:"Such as source.change."`
	Object  *string    `placeholder:"NAME" help:"On this source, handler or token, or the delivery with this id."`
	Message *string    `placeholder:"N" help:"About the message of this number."`
	From    *time.Time `placeholder:"TIME" help:"At this time or later (RFC 3339)."`
	To      *time.Time `placeholder:"TIME" help:"Before this time (RFC 3339)."`
}

func (cmd *auditCommand) Run(ctx context.Context, c *console) error {
	api, err := cmd.connect()
	if err != nil {
		return err
	}
	found, err := collect(cmd.pageFlags, func(cursor *string, limit int) ([]client.AuditEntry, *string, error) {
		page, err := client.Read[client.AuditList](api.ListAudit(ctx, &client.ListAuditParams{
			Actor: cmd.Actor, Action: cmd.Action, Object: cmd.Object, Message: cmd.Message, From: cmd.From, To: cmd.To,
			Cursor: cursor, Limit: &limit,
		}))
		return page.Items, page.Next, err
	})
	if err != nil {
		return err
	}
	return cmd.show(c, found, func(w io.Writer) {
		fmt.Fprintln(w, "AT\tACTOR\tACTION\tOBJECT\tMESSAGE\tREASON\tNOTE")
		for _, e := range found.Items {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", stamp(e.At), foreign(e.Actor), e.Action, foreign(e.Object), orDash(e.Message), orDash(e.Reason), orDash(e.Note))
		}
	})
}
