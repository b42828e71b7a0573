package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/urfave/cli/v2"
)

// brokersVariable is the environment variable of --brokers.
const brokersVariable = envPrefix + "BROKERS"

const categoryConnection = "Connection and output"

// A session is one run of a command that asks a broker.
type session struct {
	*cli.Context
	ctx   context.Context // ends after --timeout
	admin *kadm.Client
	out   output
}

// clientCommand completes a command that asks a broker: run is called with a connection, and an error of it ends the
// process with exit code 1. check, which may be nil, looks at flags and arguments before anything is sent.
func clientCommand(c cli.Command, check func(*cli.Context) error, run func(*session) error) *cli.Command {
	c.OnUsageError = usageError
	c.HideHelpCommand = true // a topic may be called help
	c.Before = check
	if c.ArgsUsage == "" {
		c.ArgsUsage = " " // otherwise help says [arguments...]
		c.Before = noArguments
	}
	c.Flags = append(c.Flags,
		&cli.StringFlag{Name: "brokers", Category: categoryConnection, Value: defaultListen, EnvVars: []string{brokersVariable},
			Usage: "`ADDRESSES` of one or more brokers, host:port, with commas between them"},
		&cli.DurationFlag{Name: "timeout", Category: categoryConnection, Value: 15 * time.Second, Usage: "longest `TIME` to wait for a broker to answer"},
		&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Category: categoryConnection, Value: outputTable,
			Usage: "`FORMAT` of what is printed: table for people, json for programs"},
	)
	c.Action = func(c *cli.Context) error { return runSession(c, run) }
	return &c
}

// commandGroup is a command that only has subcommands.
func commandGroup(c cli.Command) *cli.Command {
	c.OnUsageError = usageError
	c.HideHelpCommand = true
	c.Action = func(c *cli.Context) error {
		if c.Args().Present() {
			return wrongSettings(fmt.Errorf("there is no command %q; %s --help lists them", c.Args().First(), c.Command.HelpName))
		}
		return cli.ShowSubcommandHelp(c)
	}
	return &c
}

func runSession(c *cli.Context, run func(*session) error) error {
	out, err := newOutput(c.App.Writer, c.String("output"))
	if err != nil {
		return wrongSettings(err)
	}
	brokers, err := splitBrokers(c.String("brokers"))
	if err != nil {
		return wrongSettings(err)
	}
	timeout := c.Duration("timeout")
	if timeout < time.Millisecond {
		return wrongSettings(fmt.Errorf("--timeout is %s: write 1ms or more", timeout))
	}
	// A command is for somebody who waits: it says soon that a broker cannot be reached.
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ClientID("brooklet-cli"), kgo.RequestRetries(2),
		kgo.RetryTimeout(timeout), kgo.DialTimeout(timeout))
	if err != nil {
		return wrongSettings(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(c.Context, timeout)
	defer cancel()
	s := &session{Context: c, ctx: ctx, admin: kadm.NewClient(client), out: out}
	s.admin.SetTimeoutMillis(int32(min(timeout.Milliseconds(), 1<<31-1)))
	return connectionError(run(s), strings.Join(brokers, ","), timeout)
}

// splitBrokers reads --brokers.
func splitBrokers(text string) ([]string, error) {
	var brokers []string
	for entry := range strings.SplitSeq(text, ",") {
		entry = strings.TrimSpace(entry)
		if a, err := parseAddress(entry); err != nil || a.host == "" || a.port == 0 {
			return nil, fmt.Errorf("--brokers (or %s) is %q: write host:port, such as %s, with commas between several", brokersVariable, text, defaultListen)
		}
		brokers = append(brokers, entry)
	}
	return brokers, nil
}

// connectionError says what to look at when no broker answers.
func connectionError(err error, brokers string, timeout time.Duration) error {
	if _, ok := errors.AsType[*net.OpError](err); ok {
		return fmt.Errorf("no broker answers at %s (is it running, and is this the address in --brokers or %s?): %w", brokers, brokersVariable, err)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("no answer from %s within %s (--timeout): %w", brokers, timeout, err)
	}
	return err
}

// brokerError says what a broker answered about one thing, such as topic "orders": in its own words if it sent some.
func brokerError(about string, err error, message string) error {
	var kafka *kerr.Error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, kerr.UnknownTopicOrPartition), errors.Is(err, kerr.GroupIDNotFound):
		return fmt.Errorf("%s does not exist", about)
	case errors.Is(err, kerr.NonEmptyGroup):
		return fmt.Errorf("%s has members: stop them first", about)
	case message != "" && errors.As(err, &kafka):
		return fmt.Errorf("%s: %s (%s)", about, message, kafka.Message)
	}
	return fmt.Errorf("%s: %w", about, err)
}

// joinErrors is nil if all are nil, and otherwise one error with a line for each.
func joinErrors(errs ...error) error {
	joined := errors.Join(errs...)
	if joined == nil {
		return nil
	}
	lines := strings.Split(joined.Error(), "\n")
	if len(lines) == 1 {
		return joined
	}
	return fmt.Errorf("%d errors:\n  %s", len(lines), strings.Join(lines, "\n  "))
}

// needArguments is a check that there is at least one argument.
func needArguments(what string) func(*cli.Context) error {
	return func(c *cli.Context) error {
		if !c.Args().Present() {
			return wrongSettings(fmt.Errorf("name %s; see %s --help", what, c.Command.HelpName))
		}
		return nil
	}
}

// flagsFirst moves the flags of a command in front of its arguments, because the flag package stops at the first argument
// and people write them in any order. What follows -- is no flag.
func flagsFirst(commands []*cli.Command, args []string) []string {
	at := 1 // args[0] is the program
	var leaf *cli.Command
	for ; at < len(args); at++ {
		next := findCommand(commands, args[at])
		if next == nil {
			break
		}
		leaf, commands = next, next.Subcommands
	}
	if leaf == nil || leaf.ArgsUsage == "" {
		return args
	}
	sorted := slices.Clone(args[:at])
	var rest []string
	for ; at < len(args); at++ {
		arg := args[at]
		if arg == "--" {
			rest = append(rest, args[at+1:]...)
			break
		}
		if len(arg) < 2 || arg[0] != '-' {
			rest = append(rest, arg)
			continue
		}
		sorted = append(sorted, arg)
		if takesNext(leaf, arg) && at+1 < len(args) {
			at++
			sorted = append(sorted, args[at])
		}
	}
	if len(rest) > 0 {
		sorted = append(append(sorted, "--"), rest...)
	}
	return sorted
}

func findCommand(commands []*cli.Command, name string) *cli.Command {
	i := slices.IndexFunc(commands, func(c *cli.Command) bool { return c.HasName(name) })
	if i < 0 {
		return nil
	}
	return commands[i]
}

// takesNext tells whether the argument behind the flag arg is its value.
func takesNext(c *cli.Command, arg string) bool {
	name := strings.TrimPrefix(strings.TrimPrefix(arg, "-"), "-")
	for _, f := range c.Flags {
		if slices.Contains(f.Names(), name) {
			_, isSwitch := f.(*cli.BoolFlag)
			return !isSwitch
		}
	}
	return false // unknown, or --name=value
}
