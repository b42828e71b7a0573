package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
)

// Exit codes; see the package comment.
const (
	exitFailure  = 1
	exitSettings = 2
	exitFenced   = 3
)

// sameSignal is the time within which a second signal is taken for the first one.
const sameSignal = time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// After the first signal, another one has its default effect: it ends the process at once. Not immediately after:
	// timeout(1), for one, sends the same signal to the process and to its group.
	context.AfterFunc(ctx, func() { time.AfterFunc(sameSignal, stop) })
	app := newApp()
	os.Exit(report(app.RunContext(ctx, flagsFirst(app.Commands, os.Args))))
}

// exitError is an error that ends the process with a code other than exitFailure, or that is in the log already.
type exitError struct {
	err    error
	code   int
	logged bool
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

func wrongSettings(err error) error { return &exitError{err: err, code: exitSettings} }

// report prints what a command failed with and returns the exit code.
func report(err error) int {
	if err == nil {
		return 0
	}
	exit := &exitError{err: err, code: exitFailure}
	errors.As(err, &exit)
	if !exit.logged {
		fmt.Fprintln(os.Stderr, "brooklet:", err)
	}
	return exit.code
}

func newApp() *cli.App {
	return &cli.App{
		Name:            "brooklet",
		Usage:           "a message broker that speaks the Kafka protocol and keeps one ordered log per key",
		HideHelpCommand: true,
		HideVersion:     true, // a command of its own
		Suggest:         true,
		Commands: append([]*cli.Command{serveCommand(), topicsCommand(), configsCommand(), groupsCommand(), benchCommand(), bucketCommand(),
			healthcheckCommand(), versionCommand(), docsCommand()}, streamCommands()...),
		DisableSliceFlagSeparator: true, // values of configs contain commas
		Action:                    noCommand,
		OnUsageError:              usageError,
		ExitErrHandler:            func(*cli.Context, error) {}, // main reports the error
	}
}

// noCommand runs when no known command is named.
func noCommand(c *cli.Context) error {
	if c.Args().Present() {
		return wrongSettings(fmt.Errorf("there is no command %q; brooklet --help lists them", c.Args().First()))
	}
	return cli.ShowAppHelp(c)
}

// usageError is the error for flags that are not known or lack a value.
func usageError(c *cli.Context, err error, _ bool) error {
	name := "brooklet"
	if c.Command != nil && c.Command.HelpName != "" {
		name = c.Command.HelpName
	}
	return wrongSettings(fmt.Errorf("%w; see %s --help", err, name))
}

// noArguments refuses words that belong to no flag.
func noArguments(c *cli.Context) error {
	if !c.Args().Present() {
		return nil
	}
	return wrongSettings(fmt.Errorf("%q belongs to no flag; write switches as --flag=false, and see %s --help",
		c.Args().First(), c.Command.HelpName))
}
