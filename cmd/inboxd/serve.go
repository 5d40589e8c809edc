package main

import (
	"context"
	"encoding/json"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/inboxd/inboxd/postgres"
)

type serveCommand struct {
	databaseFlags
	gatewayFlags
	MigrateFirst bool `name:"migrate" help:"Bring the schema up to date before serving."`
}

func (cmd *serveCommand) Run(ctx context.Context, c *console) error {
	log := newLogger(c.err, cmd.LogLevel)
	if err := cmd.check(); err != nil {
		return err
	}
	if cmd.MigrateFirst {
		if err := postgres.Migrate(ctx, cmd.DatabaseURL); err != nil {
			return err
		}
	}
	g, err := newGateway(ctx, gatewayConfig{DatabaseURL: cmd.DatabaseURL, Settings: cmd.gatewayFlags, Log: log})
	if err != nil {
		return err
	}
	return g.run(ctx)
}

type migrateCommand struct {
	Up     migrateUp     `cmd:"" help:"Apply what is pending; safe beside other instances."`
	Status migrateStatus `cmd:"" help:"Say what is applied and what is pending; exit status 1 if anything is pending."`
}

type migrateUp struct{ databaseFlags }

func (cmd *migrateUp) Run(ctx context.Context, c *console) error {
	if err := postgres.Migrate(ctx, cmd.DatabaseURL); err != nil {
		return err
	}
	_, err := fmt.Fprintln(c.out, "the schema is up to date")
	return err
}

type migrateStatus struct{ databaseFlags }

func (cmd *migrateStatus) Run(ctx context.Context, c *console) error {
	migrations, err := postgres.MigrationStatus(ctx, cmd.DatabaseURL)
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
	pending := false
	for _, m := range migrations {
		state := "applied " + m.AppliedAt.Format(time.RFC3339)
		if m.Pending() {
			state, pending = "pending", true
		}
		fmt.Fprintf(table, "%05d\t%s\t%s\n", m.Version, m.Name, state)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if pending {
		return exitError(1)
	}
	return nil
}

type checkCommand struct {
	databaseFlags
	JSON bool `help:"Print one JSON object."`
}

func (cmd *checkCommand) Run(ctx context.Context, c *console) error {
	db, err := postgres.Open(ctx, cmd.DatabaseURL, 1)
	if err != nil {
		return err
	}
	defer db.Close()
	counts, violations, err := db.Check(ctx)
	if err != nil {
		return err
	}
	if cmd.JSON {
		report := struct {
			Counts     map[string]int64          `json:"counts"`
			Violations []postgres.CheckViolation `json:"violations"`
		}{make(map[string]int64, len(counts)), violations}
		for _, count := range counts {
			report.Counts[count.Name] = count.Rows
		}
		if err := json.NewEncoder(c.out).Encode(report); err != nil {
			return err
		}
	} else {
		table := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
		for _, count := range counts {
			fmt.Fprintf(table, "%s\t%d\n", count.Name, count.Rows)
		}
		for _, v := range violations {
			fmt.Fprintf(table, "BROKEN %s\t%d\t%v\n", v.Invariant, v.Rows, v.Examples)
		}
		fmt.Fprintf(table, "violations\t%d\n", len(violations))
		if err := table.Flush(); err != nil {
			return err
		}
	}
	if len(violations) > 0 {
		return exitError(1)
	}
	return nil
}
