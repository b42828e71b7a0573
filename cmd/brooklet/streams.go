package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"github.com/brookletmq/brooklet/client"
)

// Commands that work on named streams use package client.

// streamCommands are those commands.
func streamCommands() []*cli.Command {
	return []*cli.Command{appendCommand(), readCommand(), tailCommand(), listStreamsCommand(), describeStreamsCommand(),
		createStreamsCommand(), trimStreamCommand(), closeStreamsCommand(), removeStreamsCommand()}
}

const categoryStreams = "Streams"

// streamSession is one run of such a command.
type streamSession struct {
	*cli.Context
	ctx    context.Context
	client *client.Client
	in     io.Reader
	out    io.Writer
	errOut io.Writer
}

// streamCommand completes a command that works on streams. outputs are the values of --output, the default first.
func streamCommand(c cli.Command, outputs []string, check func(*cli.Context) error, run func(*streamSession) error) *cli.Command {
	c.OnUsageError = usageError
	c.HideHelpCommand = true
	c.Category = categoryStreams
	c.Before = func(c *cli.Context) error {
		if err := checkOutput(c.String("output"), outputs); err != nil {
			return err
		}
		if check == nil {
			return nil
		}
		return check(c)
	}
	c.Flags = append(c.Flags,
		&cli.StringFlag{Name: "brokers", Category: categoryConnection, Value: defaultListen, EnvVars: []string{brokersVariable},
			Usage: "`ADDRESSES` of one or more brokers, host:port, with commas between them"},
		&cli.DurationFlag{Name: "timeout", Category: categoryConnection, Value: 15 * time.Second, Usage: "longest `TIME` to wait for a broker to answer"},
		&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Category: categoryConnection, Value: outputs[0],
			Usage: "`FORMAT` of what is printed: " + strings.Join(outputs, ", ")},
	)
	c.Action = func(c *cli.Context) error { return runStreamSession(c, run) }
	return &c
}

func checkOutput(output string, outputs []string) error {
	for _, o := range outputs {
		if output == o {
			return nil
		}
	}
	return wrongSettings(fmt.Errorf("--output is %q: write %s", output, strings.Join(outputs, " or ")))
}

func runStreamSession(c *cli.Context, run func(*streamSession) error) error {
	brokers, err := splitBrokers(c.String("brokers"))
	if err != nil {
		return wrongSettings(err)
	}
	timeout := c.Duration("timeout")
	if timeout < time.Millisecond {
		return wrongSettings(fmt.Errorf("--timeout is %s: write 1ms or more", timeout))
	}
	streams, err := client.New(kgo.SeedBrokers(brokers...), kgo.ClientID("brooklet-cli"), kgo.RequestRetries(2),
		kgo.RetryTimeout(timeout), kgo.DialTimeout(timeout))
	if err != nil {
		return wrongSettings(err)
	}
	defer streams.Close()
	s := &streamSession{Context: c, ctx: c.Context, client: streams, in: c.App.Reader, out: c.App.Writer, errOut: c.App.ErrWriter}
	err = connectionError(run(s), strings.Join(brokers, ","), timeout)
	if errors.Is(err, context.Canceled) && c.Context.Err() != nil {
		return &exitError{err: errors.New("interrupted"), code: exitFailure}
	}
	return err
}

// oneStream is a check that the only argument can be a stream.
func oneStream(c *cli.Context) error {
	if c.NArg() != 1 {
		return wrongSettings(fmt.Errorf("name one stream, not %d; see %s --help", c.NArg(), c.Command.HelpName))
	}
	return checkStreams(c, c.Args().First())
}

// needStreams is a check that there is at least one argument, and that all can be streams.
func needStreams(c *cli.Context) error {
	if err := needArguments("one or more streams")(c); err != nil {
		return err
	}
	return checkStreams(c, c.Args().Slice()...)
}

// forTopics are the commands that do to topics what commands do to streams.
var forTopics = map[string]string{"create": "topics create", "describe": "topics describe", "rm": "topics delete", "trim": "topics trim"}

// checkStreams refuses names that no stream has. To a broker a stream is a topic: it would delete a real topic as well.
func checkStreams(c *cli.Context, names ...string) error {
	for _, name := range names {
		err := checkStream(name)
		if other, ok := forTopics[c.Command.Name]; ok && errors.Is(err, errTopic) {
			err = fmt.Errorf("%w; for topics there is brooklet %s", err, other)
		}
		if err != nil {
			return wrongSettings(err)
		}
	}
	return nil
}

// checkLimit refuses a --limit that is set to less than one.
func checkLimit(c *cli.Context) error {
	if limit := c.Int64("limit"); c.IsSet("limit") && limit < 1 {
		return wrongSettings(fmt.Errorf("--limit is %d: write 1 or more", limit))
	}
	return nil
}

// isTerminal tells whether a file that a command reads or writes is a terminal.
func isTerminal(file any) bool {
	f, ok := file.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// readPosition reads the value of --from.
func readPosition(text string) (client.Position, error) {
	switch text {
	case "start", "":
		return client.Start(), nil
	case "end":
		return client.End(), nil
	}
	if offset, err := strconv.ParseInt(text, 10, 64); err == nil && offset >= 0 {
		return client.At(offset), nil
	}
	if t, err := parsePast(text, time.Now()); err == nil {
		return client.Since(t), nil
	}
	return client.Position{}, wrongSettings(fmt.Errorf("--from is %q: write start, end, an offset, a time such as 2006-01-02T15:04:05Z, or an age such as 36h or 7d", text))
}

func fromFlag(value string) cli.Flag {
	return &cli.StringFlag{Name: "from", Value: value, Usage: "`PLACE` to begin at: start, end, an offset, a time such as 2006-01-02T15:04:05Z, or an age such as 36h"}
}
