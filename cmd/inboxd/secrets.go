package main

import (
	"context"
	"fmt"
	"time"

	"github.com/inboxd/inboxd/internal/seal"
	"github.com/inboxd/inboxd/postgres"
)

// secretsCommand works on the database directly: keys are the gateway's setting, not the API's.
type secretsCommand struct {
	Key   secretsKey   `cmd:"" help:"Print a new key, for INBOXD_SECRET_KEYS. Nothing keeps it."`
	Rekey secretsRekey `cmd:"" help:"Seal every secret under the first key, those stored plain included; safe beside instances that have all the keys."`
}

type secretsKey struct {
	ID string `placeholder:"ID" help:"Its id, which sealed secrets name; today's date and time if left out."`
}

func (cmd *secretsKey) Run(c *console) error {
	id := cmd.ID
	if id == "" {
		id = time.Now().UTC().Format("20060102-150405")
	}
	entry, err := seal.NewKey(id)
	if err != nil {
		return fmt.Errorf("--id: %w", err)
	}
	_, err = fmt.Fprintln(c.out, entry)
	return err
}

type secretsRekey struct {
	databaseFlags
	secretFlags
}

func (cmd *secretsRekey) Run(ctx context.Context, c *console) error {
	secrets, err := cmd.secrets()
	if err != nil {
		return err
	}
	db, err := postgres.Open(ctx, cmd.DatabaseURL, 1, postgres.WithSecrets(secrets))
	if err != nil {
		return err
	}
	defer db.Close()
	resealed, err := db.Rekey(ctx, commandLine())
	if err != nil {
		return fmt.Errorf("%d secrets were sealed again, then: %w", resealed, err)
	}
	_, err = fmt.Fprintf(c.out, "%d secrets sealed under the first key; the others were already\n", resealed)
	return err
}
