package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/urfave/cli/v2"
)

// Exit codes; see the package comment.
const (
	exitFailure  = 1
	exitSettings = 2
	exitFenced   = 3
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// Once the first signal is noticed a second one has its default effect: it ends the process at once.
	context.AfterFunc(ctx, stop)
	err := newApp().RunContext(ctx, os.Args)
	if err != nil {
		fmt.Fprintln(os.Stderr, "brooklet:", err)
	}
	os.Exit(exitCode(err))
}

func exitCode(err error) int {
	var coder cli.ExitCoder
	switch {
	case err == nil:
		return 0
	case errors.As(err, &coder):
		return coder.ExitCode()
	}
	return exitFailure
}

func newApp() *cli.App {
	return &cli.App{
		Name:            "brooklet",
		Usage:           "a message broker that speaks the Kafka protocol and keeps one ordered log per key",
		HideHelpCommand: true,
		HideVersion:     true, // a command of its own
		Suggest:         true,
		Commands:        []*cli.Command{serveCommand(), healthcheckCommand(), versionCommand(), docsCommand()},
		Action:          noCommand,
		OnUsageError:    usageError,
		ExitErrHandler:  func(*cli.Context, error) {}, // main prints the error and exits
	}
}

// noCommand runs when no known command is named.
func noCommand(c *cli.Context) error {
	if c.Args().Present() {
		return cli.Exit(fmt.Sprintf("there is no command %q; brooklet --help lists them", c.Args().First()), exitSettings)
	}
	return cli.ShowAppHelp(c)
}

// usageError is the error for flags that are not known or lack a value.
func usageError(c *cli.Context, err error, _ bool) error {
	help := "brooklet --help"
	if c.Command != nil && c.Command.Name != "" && c.Command.Name != c.App.Name {
		help = "brooklet " + c.Command.Name + " --help"
	}
	return cli.Exit(fmt.Errorf("%w; see %s", err, help), exitSettings)
}

// noArguments refuses words that belong to no flag.
func noArguments(c *cli.Context) error {
	if !c.Args().Present() {
		return nil
	}
	return cli.Exit(fmt.Errorf("%q belongs to no flag; write switches as --flag=false, and see brooklet %s --help",
		c.Args().First(), c.Command.Name), exitSettings)
}
