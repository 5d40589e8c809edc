package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/inboxd/inboxd/client"
)

type tailCommand struct {
	remoteFlags
	Source  *string        `placeholder:"NAME" help:"Of this source."`
	Handler *string        `placeholder:"NAME" help:"For this handler."`
	Type    *string        `placeholder:"T" help:"Of this message type."`
	Status  *client.Status `placeholder:"S" help:"In this status, such as MANUAL_REQUIRED."`
	Since   string         `placeholder:"TIME" help:"Begin so long ago, such as 10m, or at this time (RFC 3339); without it, now."`
}

func (cmd *tailCommand) Run(ctx context.Context, c *console) error {
	api, err := cmd.connect()
	if err != nil {
		return err
	}
	params := client.TailParams{Source: cmd.Source, Handler: cmd.Handler, MessageType: cmd.Type, Status: cmd.Status}
	if cmd.Since != "" {
		since, err := parseSince(cmd.Since, time.Now())
		if err != nil {
			return err
		}
		params.Since = &since
	}
	lines := json.NewEncoder(c.out)
	lines.SetEscapeHTML(false)
	return api.Follow(ctx, params, func(err error) { fmt.Fprintln(c.err, "inboxd: cut off, resuming:", err) }, func(e client.TailEvent) error {
		if cmd.JSON {
			return lines.Encode(e)
		}
		_, err := fmt.Fprintln(c.out, tailLine(e))
		return err
	})
}

func parseSince(text string, now time.Time) (time.Time, error) {
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return now.Add(-ago), nil
	}
	since, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return since, fmt.Errorf("--since: %q is neither a duration, such as 10m, nor a time, such as 2026-01-31T15:04:05Z", text)
	}
	return since, nil
}

func tailLine(e client.TailEvent) string {
	if m := e.Message; m != nil {
		return fmt.Sprintf("%s  message   %s  %s  %s  %s  %s", stamp(m.ReceivedAt), m.ID, m.Source, foreign(m.MessageType), foreign(m.MessageID), m.Status)
	}
	d := e.Delivery
	at := d.ReceivedAt
	if d.FinishedAt != nil {
		at = *d.FinishedAt
	}
	line := fmt.Sprintf("%s  delivery  %s  %s  %s  %s  to %s  %s", stamp(at), d.ID, d.Source, foreign(d.MessageType), foreign(d.MessageID), d.Handler, d.Status)
	if d.ResponseStatus != nil {
		line += fmt.Sprintf("  %d in %s", *d.ResponseStatus, orDash(d.Duration))
	}
	if d.LastError != nil {
		line += fmt.Sprintf("  %s", foreign(*d.LastError))
	}
	return line
}
