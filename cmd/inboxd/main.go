// Command inboxd is the whole product: the gateway, its development mode, its tools and its benchmarks.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/alecthomas/kong"
	"github.com/rs/zerolog"

	"github.com/inboxd/inboxd/client"
)

// version is set by the release build; a build by "go install" tells its module version.
var version = ""

func main() {
	zerolog.TimeFieldFormat = "2006-01-02T15:04:05.000Z07:00"
	tuneGC()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// commands is the command line.
type commands struct {
	Dev     devCommand     `cmd:"" help:"Run everything on this machine, with a PostgreSQL of its own, and show the main job."`
	Serve   serveCommand   `cmd:"" help:"Run the gateway."`
	Migrate migrateCommand `cmd:"" help:"Bring the database's schema up to date."`
	Send    sendCommand    `cmd:"" help:"Send rightly signed messages to a source."`
	Check   checkCommand   `cmd:"" help:"Verify the invariants of all rows; exit status 1 if one is broken."`
	Tokens  tokensCommand  `cmd:"" help:"Make, list and revoke operators' tokens, directly in the database."`
	Secrets secretsCommand `cmd:"" help:"Make keys that seal secrets, and seal what is stored again."`

	Sources    sourcesCommand    `cmd:"" help:"Registered ingresses, over the operators' API."`
	Handlers   handlersCommand   `cmd:"" help:"Registered downstreams, over the operators' API."`
	Messages   messagesCommand   `cmd:"" help:"What was received, over the operators' API."`
	Deliveries deliveriesCommand `cmd:"" help:"Messages on their way to a handler, over the operators' API."`
	Parked     parkedCommand     `cmd:"" help:"Deliveries that wait for a person, over the operators' API."`
	Replay     replayCommand     `cmd:"" help:"Deliver again what has ended, over the operators' API."`
	Jobs       jobsCommand       `cmd:"" help:"Actions on many deliveries, over the operators' API."`
	Lookup     lookupCommand     `cmd:"" help:"All about a key, over the operators' API."`

	Tail   tailCommand   `cmd:"" help:"Show messages and deliveries as they happen, over the operators' API."`
	Stats  statsCommand  `cmd:"" help:"Rates, backlog, latency and what is parked, over the operators' API."`
	System systemCommand `cmd:"" help:"Versions, leader, instances and tables, over the operators' API."`
	Audit  auditCommand  `cmd:"" help:"List who changed what, and why, over the operators' API."`

	Bench   benchCommand   `cmd:"" help:"Measure."`
	Version versionCommand `cmd:"" help:"Print the version."`

	Completion completionCommand `cmd:"" help:"Print what makes a shell complete this command line."`
	Complete   completeCommand   `cmd:"" hidden:"" help:"Print what a word can be; shells call it."`
}

// console is where commands print.
type console struct {
	out io.Writer // results
	err io.Writer // logs and complaints
}

// exitError ends the program with a status and no further word.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// run is the program: it parses the arguments, runs the command until it ends or ctx is done, and
// returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	status := -1
	parser, err := kong.New(&commands{},
		kong.Name("inboxd"),
		kong.Description("An inbox for webhooks: verified, committed, then answered; delivered until done."),
		kong.DefaultEnvars("INBOXD"),
		kong.PostBuild(keepSettings),
		kong.UsageOnError(),
		kong.Writers(stdout, stderr),
		kong.Exit(func(code int) { status = code }),
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Bind(&console{out: stdout, err: stderr}),
	)
	if err != nil {
		fmt.Fprintln(stderr, "inboxd:", err)
		return 2
	}
	command, err := parser.Parse(args)
	if status >= 0 { // --help has printed and "exited"
		return status
	}
	if err != nil {
		fmt.Fprintf(stderr, "inboxd: %v\nTry: inboxd --help\n", err)
		return 2
	}
	err = command.Run()
	if exit, ok := errors.AsType[exitError](err); ok {
		return int(exit)
	}
	if err != nil {
		fmt.Fprintln(stderr, "inboxd:", err)
		if refusal, ok := errors.AsType[*client.Error](err); ok {
			return remoteStatus(refusal)
		}
		return 1
	}
	return 0
}

type versionCommand struct{}

func (versionCommand) Run(c *console) error {
	_, err := fmt.Fprintln(c.out, "inboxd", buildVersion())
	return err
}

func buildVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
