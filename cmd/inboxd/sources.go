package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/inboxd/inboxd/client"
)

type sourcesCommand struct {
	List    sourcesList          `cmd:"" help:"List the sources."`
	Get     sourcesGet           `cmd:"" help:"Show a source."`
	Create  sourcesCreate        `cmd:"" help:"Register a source."`
	Change  sourcesChange        `cmd:"" aliases:"update" help:"Change a source; what isn't given stays."`
	Delete  sourcesDelete        `cmd:"" help:"Delete a source; its messages stay."`
	Secrets sourceSecretsCommand `cmd:"" help:"Secrets that verify what a source takes."`
}

func sourceTable(w io.Writer, sources []client.Source) {
	fmt.Fprintln(w, "NAME\tPROVIDER\tVARIANT\tSECRETS\tENABLED\tPROBLEM")
	for _, s := range sources {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%t\t%s\n", s.Name, s.Provider, s.Variant, s.SecretCount, s.Enabled, orDash(s.SecretError))
	}
}

type sourcesList struct{ remoteFlags }

func (cmd *sourcesList) Run(ctx context.Context, c *console) error {
	api, err := cmd.connect()
	if err != nil {
		return err
	}
	found, err := client.Read[client.SourceList](api.ListSources(ctx))
	if err != nil {
		return err
	}
	return cmd.show(c, found, func(w io.Writer) { sourceTable(w, found.Items) })
}

type sourcesGet struct {
	remoteFlags
	Name string `arg:""`
}

func (cmd *sourcesGet) Run(ctx context.Context, c *console) error {
	api, err := cmd.connect()
	if err != nil {
		return err
	}
	found, err := client.Read[client.Source](api.GetSource(ctx, cmd.Name))
	if err != nil {
		return err
	}
	return cmd.show(c, found, func(w io.Writer) { sourceTable(w, []client.Source{found}) })
}

// sourceFlags are what can be set on a source, beside its name and provider.
type sourceFlags struct {
	Variant    *string  `placeholder:"V" help:"The sheet's variant."`
	Settings   string   `placeholder:"JSON" help:"What the sheet lets a source configure; no secrets."`
	SecretFile []string `placeholder:"F" help:"A file that holds a secret; - is standard input."`
	SecretRef  []string `placeholder:"REF" help:"env:NAME or file:/path, looked up by each instance."`
	BodyLimit  *int64   `placeholder:"N" help:"Bytes of a body; 0 is the server's default."`
	Enabled    *bool    `negatable:"" help:"Whether it takes webhooks."`
}

func (f *sourceFlags) settings() (*json.RawMessage, error) {
	if f.Settings == "" {
		return nil, nil
	}
	if !json.Valid([]byte(f.Settings)) {
		return nil, errors.New("--settings isn't JSON")
	}
	return new(json.RawMessage(f.Settings)), nil
}

type sourcesCreate struct {
	remoteFlags
	sourceFlags
	Name     string `arg:"" help:"Part of its URL."`
	Provider string `required:"" placeholder:"SHEET" help:"The sheet that verifies its requests."`
}

func (cmd *sourcesCreate) Run(ctx context.Context, c *console) error {
	api, err := cmd.connect()
	if err != nil {
		return err
	}
	settings, err := cmd.settings()
	if err != nil {
		return err
	}
	secrets, err := readSecrets(cmd.SecretFile, cmd.SecretRef)
	if err != nil {
		return err
	}
	made, err := client.Read[client.Source](api.CreateSource(ctx, client.NewSource{
		Name: cmd.Name, Provider: cmd.Provider, Variant: cmd.Variant, Settings: settings, Secrets: secrets,
		BodyLimit: cmd.BodyLimit, Enabled: cmd.Enabled,
	}))
	if err != nil {
		return err
	}
	return cmd.show(c, made, func(w io.Writer) { sourceTable(w, []client.Source{made}) })
}

type sourcesChange struct {
	remoteFlags
	sourceFlags
	Name     string  `arg:""`
	Provider *string `placeholder:"SHEET" help:"The sheet that verifies its requests."`
}

func (cmd *sourcesChange) Run(ctx context.Context, c *console) error {
	api, err := cmd.connect()
	if err != nil {
		return err
	}
	settings, err := cmd.settings()
	if err != nil {
		return err
	}
	secrets, err := readSecrets(cmd.SecretFile, cmd.SecretRef)
	if err != nil {
		return err
	}
	now, err := client.Read[client.Source](api.ChangeSource(ctx, cmd.Name, client.SourceChange{
		Provider: cmd.Provider, Variant: cmd.Variant, Settings: settings, Secrets: secrets,
		BodyLimit: cmd.BodyLimit, Enabled: cmd.Enabled,
	}))
	if err != nil {
		return err
	}
	return cmd.show(c, now, func(w io.Writer) { sourceTable(w, []client.Source{now}) })
}

type sourcesDelete struct {
	remoteFlags
	Name string `arg:""`
}

func (cmd *sourcesDelete) Run(ctx context.Context, _ *console) error {
	api, err := cmd.connect()
	if err != nil {
		return err
	}
	_, err = client.Read[struct{}](api.DeleteSource(ctx, cmd.Name))
	return err
}
