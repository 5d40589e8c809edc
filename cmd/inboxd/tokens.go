package main

import (
	"context"
	"errors"
	"fmt"
	"os/user"
	"strconv"
	"strings"
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
	Name     string   `arg:"" help:"Who it is for."`
	Role     string   `default:"read" enum:"read,operate,admin" help:"What it may do: ${enum}. Each includes those before it."`
	Expires  string   `placeholder:"WHEN" help:"A time such as 2027-01-31T00:00:00Z, or how long it is valid, such as 12h or 90d. Without it, it doesn't expire."`
	Sources  []string `name:"source" placeholder:"GLOB" default:"*" help:"Only for sources whose names match. Can be given more than once."`
	Handlers []string `name:"handler" placeholder:"GLOB" default:"*" help:"Only for handlers whose names match. Can be given more than once."`
}

func (cmd *tokensCreate) Run(ctx context.Context, c *console) error {
	token := &inbox.OperatorToken{Name: cmd.Name, Role: inbox.Role(cmd.Role), Scope: inbox.Scope{Sources: cmd.Sources, Handlers: cmd.Handlers}}
	if err := token.Scope.Check(); err != nil {
		return err
	}
	var err error
	if token.ExpiresAt, err = parseExpiry(cmd.Expires, time.Now()); err != nil {
		return err
	}
	db, err := postgres.Open(ctx, cmd.DatabaseURL, 1)
	if err != nil {
		return err
	}
	defer db.Close()
	text, err := db.CreateToken(ctx, commandLine(), token)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(c.out, text)
	return err
}

// parseExpiry reads a time, or a duration from now on; zero for "".
func parseExpiry(text string, now time.Time) (at time.Time, err error) {
	if text == "" {
		return time.Time{}, nil
	}
	at, err = time.Parse(time.RFC3339, text)
	if err != nil {
		var d time.Duration
		if days, ok := strings.CutSuffix(text, "d"); ok {
			var n int
			n, err = strconv.Atoi(days)
			at = now.AddDate(0, 0, n)
		} else {
			d, err = time.ParseDuration(text)
			at = now.Add(d)
		}
	}
	if err != nil {
		return time.Time{}, errors.New("--expires must be a time such as 2027-01-31T00:00:00Z, or a duration such as 12h or 90d")
	}
	if !at.After(now) {
		return time.Time{}, errors.New("--expires must lie ahead")
	}
	return at, nil
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
	fmt.Fprintln(table, "NAME\tROLE\tSOURCES\tHANDLERS\tCREATED\tSTATE")
	now := time.Now()
	for _, t := range tokens {
		state := "valid"
		switch {
		case !t.RevokedAt.IsZero():
			state = "revoked " + stamp(t.RevokedAt)
		case !t.Valid(now):
			state = "expired " + stamp(t.ExpiresAt)
		case !t.ExpiresAt.IsZero():
			state = "until " + stamp(t.ExpiresAt)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", t.Name, t.Role, strings.Join(t.Scope.Sources, " "), strings.Join(t.Scope.Handlers, " "),
			stamp(t.CreatedAt), state)
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
