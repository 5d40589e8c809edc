package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/inboxd/inboxd/client"
)

// sourceSecretsCommand works on the secrets of a source.
type sourceSecretsCommand struct {
	List   sourceSecretsList   `cmd:"" help:"List a source's secrets by id, without their texts."`
	Add    sourceSecretsAdd    `cmd:"" help:"Add a secret; the others stay."`
	Rotate sourceSecretsRotate `cmd:"" help:"Replace the secrets by a new one; the others hold until the overlap is over."`
	Retire sourceSecretsRetire `cmd:"" help:"Take a secret away at once."`
}

// handlerSecretsCommand works on the secrets that sign what a handler is sent.
type handlerSecretsCommand struct {
	List   handlerSecretsList   `cmd:"" help:"List a handler's signing secrets by id, without their texts."`
	Rotate handlerSecretsRotate `cmd:"" help:"Replace the signing secret, and print the new one, this once; until the overlap is over both sign."`
	Retire handlerSecretsRetire `cmd:"" help:"Take a signing secret away at once."`
}

func secretTable(w io.Writer, secrets []client.Secret) {
	fmt.Fprintln(w, "ID\tKIND\tADDED\tUNTIL")
	for _, s := range secrets {
		until := "-"
		if s.NotAfter != nil {
			until = stamp(*s.NotAfter)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", s.ID, s.Kind, stamp(s.AddedAt), until)
	}
}

// secretInput is one secret that is given to a command.
type secretInput struct {
	SecretFile string `xor:"secret" placeholder:"F" help:"A file that holds the secret; - is standard input."`
	SecretRef  string `xor:"secret" placeholder:"REF" help:"env:NAME or file:/path, looked up by each instance."`
}

// read returns nil if no secret was given.
func (f *secretInput) read() (*string, error) {
	var files, references []string
	if f.SecretFile != "" {
		files = []string{f.SecretFile}
	}
	if f.SecretRef != "" {
		references = []string{f.SecretRef}
	}
	secrets, err := readSecrets(files, references)
	if err != nil || len(secrets) == 0 {
		return nil, err
	}
	return &secrets[0], nil
}

var errNoSecret = errors.New("give the secret with --secret-file or --secret-ref")

// manySecrets is a command that ends with the secrets as they are now.
type manySecrets struct {
	remoteFlags
	Name string `arg:""`
}

func (cmd *manySecrets) run(c *console, call func(api *client.Client) (*http.Response, error)) error {
	api, err := cmd.connect()
	if err != nil {
		return err
	}
	now, err := client.Read[client.SecretList](call(api))
	if err != nil {
		return err
	}
	return cmd.show(c, now, func(w io.Writer) { secretTable(w, now.Items) })
}

type sourceSecretsList struct{ manySecrets }

func (cmd *sourceSecretsList) Run(ctx context.Context, c *console) error {
	return cmd.run(c, func(api *client.Client) (*http.Response, error) { return api.ListSourceSecrets(ctx, cmd.Name) })
}

type sourceSecretsAdd struct {
	remoteFlags
	secretInput
	Name   string  `arg:""`
	Reason *string `placeholder:"TEXT" help:"Why."`
}

func (cmd *sourceSecretsAdd) Run(ctx context.Context, c *console) error {
	api, err := cmd.connect()
	if err != nil {
		return err
	}
	secret, err := cmd.read()
	if err == nil && secret == nil {
		err = errNoSecret
	}
	if err != nil {
		return err
	}
	added, err := client.Read[client.Secret](api.AddSourceSecret(ctx, cmd.Name, client.NewSecret{Secret: secret, Reason: cmd.Reason}))
	if err != nil {
		return err
	}
	return cmd.show(c, added, func(w io.Writer) { secretTable(w, []client.Secret{added}) })
}

type sourceSecretsRotate struct {
	manySecrets
	secretInput
	Overlap *string `placeholder:"D" help:"How long the others still hold; 24h if left out, 0s for not at all."`
	Reason  *string `placeholder:"TEXT" help:"Why."`
}

func (cmd *sourceSecretsRotate) Run(ctx context.Context, c *console) error {
	secret, err := cmd.read()
	if err == nil && secret == nil {
		err = errNoSecret
	}
	if err != nil {
		return err
	}
	return cmd.run(c, func(api *client.Client) (*http.Response, error) {
		return api.RotateSourceSecret(ctx, cmd.Name, client.SecretRotation{Secret: secret, Overlap: cmd.Overlap, Reason: cmd.Reason})
	})
}

// retireSecret is a command that names a secret by its id.
type retireSecret struct {
	remoteFlags
	Name string `arg:""`
	ID   string `arg:"" help:"The secret's id."`
}

type sourceSecretsRetire struct{ retireSecret }

func (cmd *sourceSecretsRetire) Run(ctx context.Context, _ *console) error {
	api, err := cmd.connect()
	if err != nil {
		return err
	}
	_, err = client.Read[struct{}](api.RetireSourceSecret(ctx, cmd.Name, cmd.ID))
	return err
}

type handlerSecretsList struct{ manySecrets }

func (cmd *handlerSecretsList) Run(ctx context.Context, c *console) error {
	return cmd.run(c, func(api *client.Client) (*http.Response, error) { return api.ListHandlerSecrets(ctx, cmd.Name) })
}

type handlerSecretsRotate struct {
	remoteFlags
	secretInput
	Name    string  `arg:""`
	Overlap *string `placeholder:"D" help:"How long the others still sign; 24h if left out, 0s for not at all."`
	Reason  *string `placeholder:"TEXT" help:"Why."`
}

func (cmd *handlerSecretsRotate) Run(ctx context.Context, c *console) error {
	api, err := cmd.connect()
	if err != nil {
		return err
	}
	secret, err := cmd.read()
	if err != nil {
		return err
	}
	rotated, err := client.Read[client.RotatedSecret](api.RotateHandlerSecret(ctx, cmd.Name,
		client.HandlerSecretRotation{Secret: secret, Overlap: cmd.Overlap, Reason: cmd.Reason}))
	if err != nil {
		return err
	}
	return cmd.show(c, rotated, func(w io.Writer) {
		secretTable(w, rotated.Items)
		if rotated.Secret != nil {
			fmt.Fprintf(w, "\nThe new signing secret, shown this once: %s\n", *rotated.Secret)
		}
	})
}

type handlerSecretsRetire struct{ retireSecret }

func (cmd *handlerSecretsRetire) Run(ctx context.Context, _ *console) error {
	api, err := cmd.connect()
	if err != nil {
		return err
	}
	_, err = client.Read[struct{}](api.RetireHandlerSecret(ctx, cmd.Name, cmd.ID))
	return err
}

// maxCredentialsFile is the most bytes of a file of credentials, which may hold certificates.
const maxCredentialsFile = 256 << 10

// readCredentials reads a handler's credentials as the API takes them; nil if there is no file.
func readCredentials(file string) (*client.Credentials, error) {
	if file == "" {
		return nil, nil
	}
	text, err := readInput(file, maxCredentialsFile)
	if err != nil {
		return nil, fmt.Errorf("read the credentials: %w", err)
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	var credentials client.Credentials
	if err := decoder.Decode(&credentials); err != nil {
		// The reason is left out: it may quote a secret.
		return nil, fmt.Errorf("%s must be a JSON object with no other fields than the API has: headers, bearer, basic, oauth2, tls", file)
	}
	return &credentials, nil
}
