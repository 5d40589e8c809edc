package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/inboxd/inboxd/client"
)

type statsCommand struct {
	remoteFlags
	Minutes *int `placeholder:"N" help:"Rates and latencies are of so many minutes before now; 5 if left out."`
}

func (cmd *statsCommand) Run(ctx context.Context, c *console) error {
	api, err := cmd.connect()
	if err != nil {
		return err
	}
	found, err := client.Read[client.Stats](api.GetStats(ctx, &client.GetStatsParams{Minutes: cmd.Minutes}))
	if err != nil {
		return err
	}
	return cmd.show(c, found, func(w io.Writer) {
		fmt.Fprintf(w, "RATES OF %s\tRECEIVED\tATTEMPTS\tFAILED\tENDED\n", found.Window)
		fmt.Fprintf(w, "a minute\t%s\t%s\t%s\t%s\n", rate(found.Received), rate(found.Attempts), rate(found.Failed), rate(found.Ended))
		fmt.Fprintln(w, "\nHANDLER\tPAUSED\tPENDING\tFAILED\tPROCESSING\tWAITING\tPARKED\tWAITED\tDONE A MINUTE\tFAILED A MINUTE\tP50\tP95\tP99")
		for _, h := range found.Handlers {
			p50, p95, p99 := "-", "-", "-"
			if h.EndToEnd != nil {
				p50, p95, p99 = h.EndToEnd.P50, h.EndToEnd.P95, h.EndToEnd.P99
			}
			fmt.Fprintf(w, "%s\t%t\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", h.Handler, h.Paused, count(h.Backlog.Pending), count(h.Backlog.Failed),
				count(h.Backlog.Processing), count(h.Backlog.Waiting), count(h.Backlog.ManualRequired), orDash(h.Waited), rate(h.Done), rate(h.Failed),
				p50, p95, p99)
		}
		fmt.Fprintf(w, "all\t-\t%s\t%s\t%s\t%s\t%s\n", count(found.Backlog.Pending), count(found.Backlog.Failed), count(found.Backlog.Processing),
			count(found.Backlog.Waiting), count(found.Backlog.ManualRequired))
		if len(found.Parking) == 0 {
			return
		}
		fmt.Fprintln(w, "\nWAITS FOR SOMEBODY\tHANDLER\tSOURCE\tCOUNT\tOLDEST")
		for _, p := range found.Parking {
			n := "-"
			if p.Count != nil {
				n = count(*p.Count)
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", p.Place, orDash(p.Handler), orDash(p.Source), n, stampOrDash(p.Oldest))
		}
	})
}

// count marks what isn't exact: 5000+ where counting stopped, ~5000 where it is an estimate.
func count(c client.Count) string {
	text := strconv.FormatInt(c.Count, 10)
	switch {
	case c.AtLeast != nil && *c.AtLeast:
		return text + "+"
	case c.Estimated != nil && *c.Estimated:
		return "~" + text
	}
	return text
}

func rate(r client.Rate) string {
	text := strconv.FormatFloat(r.PerMinute, 'f', 1, 64)
	if r.Estimated != nil && *r.Estimated {
		return "~" + text
	}
	return text
}

func stampOrDash(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return stamp(*t)
}

type systemCommand struct{ remoteFlags }

func (cmd *systemCommand) Run(ctx context.Context, c *console) error {
	api, err := cmd.connect()
	if err != nil {
		return err
	}
	found, err := client.Read[client.System](api.GetSystem(ctx))
	if err != nil {
		return err
	}
	return cmd.show(c, found, func(w io.Writer) {
		fmt.Fprintf(w, "version\t%s\nanswered by\t%s\nPostgreSQL\t%s\n", found.Version, found.Instance, found.Postgresql)
		fmt.Fprintf(w, "schema\t%d of %d\n", found.Schema.Applied, found.Schema.Known)
		leader := "nobody; the last was " + found.Leader.Owner
		if found.Leader.Leading {
			leader = found.Leader.Owner
		}
		fmt.Fprintf(w, "leader\t%s\n", leader)
		if s := found.OldestSnapshot; s != nil {
			fmt.Fprintf(w, "oldest snapshot\t%s %s, open for %s, %d transactions since\n", s.Kind, s.Name, orDash(s.Open), s.Transactions)
		}
		fmt.Fprintln(w, "\nINSTANCE\tLEADS\tCLAIMS")
		for _, i := range found.Instances {
			fmt.Fprintf(w, "%s\t%t\t%d\n", i.Owner, i.Leading, i.Claims)
		}
		fmt.Fprintln(w, "\nTABLE\tROWS\tBYTES\tPARTITIONS\tUNTIL")
		for _, t := range found.Tables {
			fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\n", t.Name, count(t.Rows), t.Bytes, len(t.Partitions), stampOrDash(t.Until))
		}
	})
}
