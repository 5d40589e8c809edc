package main

import (
	"context"
	"fmt"
	"os/user"
	"text/tabwriter"
	"time"

	"github.com/inboxd/inboxd/inbox"
	"github.com/inboxd/inboxd/postgres"
)

// tokensCommand works on the database directly, so that nobody is ever locked out of the API.
type tokensCommand struct {
	Create tokensCreate `cmd:"" help:"Make a token and print it, this once."`
	List   tokensList   `cmd:"" help:"List the tokens, without their text."`
	Revoke tokensRevoke `cmd:"" help:"Make a token invalid."`
}

type tokensCreate struct {
	databaseFlags
	Name string `arg:"" help:"Who it is for."`
}

func (cmd *tokensCreate) Run(ctx context.Context, c *console) error {
	db, err := postgres.Open(ctx, cmd.DatabaseURL, 1)
	if err != nil {
		return err
	}
	defer db.Close()
	token, err := db.CreateToken(ctx, commandLine(), cmd.Name)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(c.out, token)
	return err
}

// commandLine is the actor of commands that work on the database.
func commandLine() inbox.Actor {
	name := "command line"
	if u, err := user.Current(); err == nil {
		name += " as " + u.Username
	}
	return inbox.Actor{Name: name}
}

type tokensList struct{ databaseFlags }

func (cmd *tokensList) Run(ctx context.Context, c *console) error {
	db, err := postgres.Open(ctx, cmd.DatabaseURL, 1)
	if err != nil {
		return err
	}
	defer db.Close()
	tokens, err := db.Tokens(ctx)
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
	for _, token := range tokens {
		state := "valid"
		if !token.RevokedAt.IsZero() {
			state = "revoked " + token.RevokedAt.Format(time.RFC3339)
		}
		fmt.Fprintf(table, "%s\tcreated %s\t%s\n", token.Name, token.CreatedAt.Format(time.RFC3339), state)
	}
	return table.Flush()
}

type tokensRevoke struct {
	databaseFlags
	Name string `arg:"" help:"Which one."`
}

func (cmd *tokensRevoke) Run(ctx context.Context, c *console) error {
	db, err := postgres.Open(ctx, cmd.DatabaseURL, 1)
	if err != nil {
		return err
	}
	defer db.Close()
	if err := db.RevokeToken(ctx, commandLine(), cmd.Name); err != nil {
		return err
	}
	_, err = fmt.Fprintln(c.out, "revoked", cmd.Name)
	return err
}
