package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/inboxd/inboxd/client"
)

type handlersCommand struct {
	List    handlersList          `cmd:"" help:"List the handlers."`
	Get     handlersGet           `cmd:"" help:"Show a handler."`
	Create  handlersCreate        `cmd:"" help:"Register a handler, and print the secret that signs what it is sent, this once."`
	Change  handlersChange        `cmd:"" aliases:"update" help:"Change a handler; what isn't given stays."`
	Delete  handlersDelete        `cmd:"" help:"Delete a handler; its unfinished deliveries end as DISCARDED."`
	Pause   handlersPause         `cmd:"" help:"Deliver nothing more to a handler; its messages wait."`
	Resume  handlersResume        `cmd:"" help:"Deliver to a handler again, what waited included."`
	Secrets handlerSecretsCommand `cmd:"" help:"Secrets that sign what a handler is sent."`
	Ping    handlersPing          `cmd:"" help:"Send a handler a test delivery now; exit status 1 if it doesn't answer 2xx."`
}

func handlerTable(w io.Writer, handlers []client.HandlerView) {
	fmt.Fprintln(w, "NAME\tURL\tSOURCES\tTYPES\tCONCURRENCY\tTIMEOUT\tRETRIES\tPAUSED\tPROBLEM")
	for _, h := range handlers {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\t%d\t%t\t%s\n", h.Name, h.URL, strings.Join(h.Sources, ","), foreign(strings.Join(h.MessageTypes, ",")),
			h.Concurrency, h.Timeout, h.MaxRetryCount, h.Paused, orDash(h.SecretError))
	}
}

type handlersList struct{ remoteFlags }

func (cmd *handlersList) Run(ctx context.Context, c *console) error {
	api, err := cmd.connect()
	if err != nil {
		return err
	}
	found, err := client.Read[client.HandlerList](api.ListHandlers(ctx))
	if err != nil {
		return err
	}
	return cmd.show(c, found, func(w io.Writer) { handlerTable(w, found.Items) })
}

// oneHandler is a command that ends with a handler as it is now.
type oneHandler struct {
	remoteFlags
	Name string `arg:""`
}

func (cmd *oneHandler) run(c *console, call func(api *client.Client) (*http.Response, error)) error {
	api, err := cmd.connect()
	if err != nil {
		return err
	}
	now, err := client.Read[client.HandlerView](call(api))
	if err != nil {
		return err
	}
	return cmd.show(c, now, func(w io.Writer) { handlerTable(w, []client.HandlerView{now}) })
}

type handlersGet struct{ oneHandler }

func (cmd *handlersGet) Run(ctx context.Context, c *console) error {
	return cmd.run(c, func(api *client.Client) (*http.Response, error) { return api.GetHandler(ctx, cmd.Name) })
}

// handlerFlags are what can be set on a handler, beside its name, URL and sources.
type handlerFlags struct {
	Type            []string `placeholder:"GLOB" help:"Globs of the message types that it gets, such as order.*."`
	Concurrency     *int     `placeholder:"N" help:"Requests under way at once from one instance."`
	Timeout         *string  `placeholder:"D" help:"Of one attempt, such as 30s."`
	MaxRetryCount   *int     `placeholder:"N" help:"Retries after the first attempt; then a delivery is parked."`
	BackoffBase     *string  `placeholder:"D" help:"The delay after the first failure; it doubles with each retry."`
	BackoffCap      *string  `placeholder:"D" help:"No delay is longer."`
	PermanentStatus []int    `placeholder:"N" help:"Answers that no retry can cure; they park a delivery at once."`
	CredentialsFile string   `placeholder:"F" help:"A file with what it is shown beside the signature, in JSON as the API takes it; - is standard input. {} takes it away."`
}

type handlersCreate struct {
	remoteFlags
	handlerFlags
	Name      string   `arg:""`
	HandlerTo string   `name:"to" required:"" placeholder:"URL" help:"Where its messages are sent."`
	Source    []string `required:"" placeholder:"NAME" help:"Sources that it subscribes to; * is every one."`
	Paused    *bool    `help:"Deliver nothing yet."`
}

func (cmd *handlersCreate) Run(ctx context.Context, c *console) error {
	api, err := cmd.connect()
	if err != nil {
		return err
	}
	credentials, err := readCredentials(cmd.CredentialsFile)
	if err != nil {
		return err
	}
	made, err := client.Read[client.CreatedHandler](api.CreateHandler(ctx, client.NewHandler{
		Name: cmd.Name, URL: cmd.HandlerTo, Sources: cmd.Source, MessageTypes: cmd.Type, Concurrency: cmd.Concurrency, Timeout: cmd.Timeout,
		MaxRetryCount: cmd.MaxRetryCount, BackoffBase: cmd.BackoffBase, BackoffCap: cmd.BackoffCap, PermanentStatuses: cmd.PermanentStatus,
		Paused: cmd.Paused, Credentials: credentials,
	}))
	if err != nil {
		return err
	}
	return cmd.show(c, made, func(w io.Writer) {
		handlerTable(w, []client.HandlerView{made.Handler})
		fmt.Fprintf(w, "\nIts signing secret, shown this once: %s\n", made.Secret)
	})
}

type handlersChange struct {
	oneHandler
	handlerFlags
	HandlerTo *string  `name:"to" placeholder:"URL" help:"Where its messages are sent."`
	Source    []string `placeholder:"NAME" help:"Sources that it subscribes to; * is every one."`
}

func (cmd *handlersChange) Run(ctx context.Context, c *console) error {
	credentials, err := readCredentials(cmd.CredentialsFile)
	if err != nil {
		return err
	}
	return cmd.run(c, func(api *client.Client) (*http.Response, error) {
		return api.ChangeHandler(ctx, cmd.Name, client.HandlerChange{
			URL: cmd.HandlerTo, Sources: cmd.Source, MessageTypes: cmd.Type, Concurrency: cmd.Concurrency, Timeout: cmd.Timeout,
			MaxRetryCount: cmd.MaxRetryCount, BackoffBase: cmd.BackoffBase, BackoffCap: cmd.BackoffCap, PermanentStatuses: cmd.PermanentStatus,
			Credentials: credentials,
		})
	})
}

type handlersDelete struct {
	remoteFlags
	Name string `arg:""`
}

func (cmd *handlersDelete) Run(ctx context.Context, _ *console) error {
	api, err := cmd.connect()
	if err != nil {
		return err
	}
	_, err = client.Read[struct{}](api.DeleteHandler(ctx, cmd.Name))
	return err
}

type handlersPause struct {
	oneHandler
	Reason *string `placeholder:"TEXT" help:"Why."`
}

func (cmd *handlersPause) Run(ctx context.Context, c *console) error {
	return cmd.run(c, func(api *client.Client) (*http.Response, error) {
		return api.PauseHandler(ctx, cmd.Name, client.Reason{Reason: cmd.Reason})
	})
}

type handlersResume struct {
	oneHandler
	Reason *string `placeholder:"TEXT" help:"Why."`
}

func (cmd *handlersResume) Run(ctx context.Context, c *console) error {
	return cmd.run(c, func(api *client.Client) (*http.Response, error) {
		return api.ResumeHandler(ctx, cmd.Name, client.Reason{Reason: cmd.Reason})
	})
}

type handlersPing struct {
	remoteFlags
	Name string `arg:""`
}

func (cmd *handlersPing) Run(ctx context.Context, c *console) error {
	api, err := cmd.connect()
	if err != nil {
		return err
	}
	ping, err := client.Read[client.Ping](api.PingHandler(ctx, cmd.Name))
	if err != nil {
		return err
	}
	err = cmd.show(c, ping, func(w io.Writer) {
		if ping.ResponseStatus != nil {
			fmt.Fprintf(w, "answered %d in %s\n", *ping.ResponseStatus, ping.Duration)
		}
		if ping.Error != "" {
			fmt.Fprintf(w, "%s: %s\n", ping.Class, ping.Error)
		}
		if ping.ResponseBody != "" {
			fmt.Fprintf(w, "%s\n", foreign(ping.ResponseBody))
		}
	})
	if err == nil && !ping.OK {
		err = exitError(1)
	}
	return err
}
