package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/brookletmq/brooklet/client"
)

// printedStream is a stream in JSON output.
type printedStream struct {
	Name           string `json:"name"`
	StartOffset    int64  `json:"start_offset"`
	NextOffset     int64  `json:"next_offset"`
	Created        string `json:"created"`
	LastWrite      string `json:"last_write"`
	Closed         bool   `json:"closed"`
	RetentionMs    int64  `json:"retention_ms"`    // -1: for ever
	RetentionBytes int64  `json:"retention_bytes"` // -1: no limit
	TTLMs          int64  `json:"ttl_ms"`          // -1: for ever
	ContentType    string `json:"content_type,omitempty"`
}

func newPrintedStream(i *client.Info) printedStream {
	return printedStream{
		Name: i.Stream, StartOffset: i.Start, NextOffset: i.Next, Created: i.Created.UTC().Format(time.RFC3339Nano), LastWrite: i.LastWrite.UTC().Format(time.RFC3339Nano),
		Closed: i.Closed, RetentionMs: milliseconds(i.Retention), RetentionBytes: i.RetentionBytes, TTLMs: milliseconds(i.TTL), ContentType: i.ContentType,
	}
}

func milliseconds(d time.Duration) int64 {
	if d < 0 {
		return -1
	}
	return d.Milliseconds()
}

func listStreamsCommand() *cli.Command {
	return streamCommand(cli.Command{
		Name:      "ls",
		Usage:     "list streams by the beginning of their names",
		ArgsUsage: "[PREFIX]",
		Description: "Names come in order of their bytes. There may be millions: use a prefix, or pages by --limit and --after. --output json\n" +
			"prints an object a line.\n\n" +
			"Examples:\n   brooklet ls sessions/\n   brooklet ls -l sessions/ --limit 100\n   brooklet ls sessions/ --limit 100 --after sessions/bob",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "long", Aliases: []string{"l"}, Usage: "show offsets and the time of the last write"},
			&cli.StringFlag{Name: "after", Usage: "begin behind this `NAME`"},
			&cli.Int64Flag{Name: "limit", DefaultText: "all", Usage: "list `NUMBER` streams at most"},
		},
	}, []string{outputText, outputJSON}, func(c *cli.Context) error {
		if c.NArg() > 1 {
			return wrongSettings(fmt.Errorf("name one prefix, not %d", c.NArg()))
		}
		return checkLimit(c)
	}, runListStreams)
}

func runListStreams(s *streamSession) error {
	w := bufio.NewWriter(s.out)
	asJSON, long := s.String("output") == outputJSON, s.Bool("long")
	if long && !asJSON {
		fmt.Fprintf(w, "%12s %12s  %-20s  %-6s  %s\n", "START", "NEXT", "LAST WRITE", "STATE", "STREAM")
	}
	n := int64(0)
	for info, err := range s.client.List(s.ctx, s.Args().First(), s.String("after")) {
		if err != nil {
			return errors.Join(err, w.Flush())
		}
		switch {
		case asJSON:
			e := json.NewEncoder(w)
			e.SetEscapeHTML(false)
			err = e.Encode(newPrintedStream(&info))
		case long:
			_, err = fmt.Fprintf(w, "%12d %12d  %-20s  %-6s  %s\n", info.Start, info.Next, info.LastWrite.UTC().Format(time.RFC3339), stateOf(&info), cell(info.Stream))
		default:
			_, err = fmt.Fprintln(w, info.Stream)
		}
		if err != nil {
			return err
		}
		if n++; n == s.Int64("limit") {
			break
		}
	}
	return w.Flush()
}

func stateOf(i *client.Info) string {
	if i.Closed {
		return "closed"
	}
	return "open"
}

func describeStreamsCommand() *cli.Command {
	return streamCommand(cli.Command{
		Name:        "describe",
		Usage:       "show offsets and settings of streams",
		ArgsUsage:   "STREAM...",
		Description: "Examples:\n   brooklet describe sessions/alice\n   brooklet describe sessions/alice --output json",
	}, []string{outputTable, outputJSON}, needStreams, runDescribeStreams)
}

func runDescribeStreams(s *streamSession) error {
	var errs []error
	streams := []printedStream{}
	var tables []*table
	for _, name := range s.Args().Slice() {
		info, err := s.client.Describe(s.ctx, name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		streams = append(streams, newPrintedStream(&info))
		tables = append(tables, describeTable(&info))
	}
	out := output{w: s.out, json: s.String("output") == outputJSON}
	return joinErrors(out.print(streams, tables...), errors.Join(errs...))
}

func describeTable(i *client.Info) *table {
	limit := func(negative bool, text string) string {
		if negative {
			return "no limit"
		}
		return text
	}
	t := newTable()
	t.add("stream", i.Stream)
	t.add("state", stateOf(i))
	t.add("offsets", fmt.Sprintf("%d to %d", i.Start, i.Next))
	t.add("records", i.Next-i.Start)
	t.add("created", i.Created.UTC().Format(time.RFC3339))
	t.add("last write", i.LastWrite.UTC().Format(time.RFC3339))
	t.add("retention", limit(i.Retention < 0, i.Retention.String()))
	t.add("retention bytes", limit(i.RetentionBytes < 0, fmt.Sprint(i.RetentionBytes)))
	t.add("time to live", limit(i.TTL < 0, i.TTL.String()))
	t.add("content type", i.ContentType)
	return t
}

func createStreamsCommand() *cli.Command {
	return streamCommand(cli.Command{
		Name:      "create",
		Usage:     "create empty streams with settings",
		ArgsUsage: "STREAM...",
		Description: "Streams without settings need not be created: they come to exist with their first record. Settings are changed with\n" +
			"brooklet configs set topic STREAM NAME=VALUE.\n\n" +
			"Examples:\n   brooklet create sessions/alice --ttl 720h\n   brooklet create events/web --retention 168h --content-type application/json",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "retention", DefaultText: "for ever", Usage: "drop records that are older than this `TIME`, such as 36h or 7d"},
			&cli.StringFlag{Name: "retention-bytes", DefaultText: "no limit", Usage: "drop the oldest records beyond this many `BYTES`, such as 64MiB, 1GB or 1048588"},
			&cli.StringFlag{Name: "ttl", DefaultText: "for ever", Usage: "delete the stream when nothing was written to it for this `TIME`"},
			&cli.StringFlag{Name: "content-type", Usage: "media `TYPE` of the records' values"},
		},
	}, []string{outputText, outputJSON}, needStreams, runCreateStreams)
}

func runCreateStreams(s *streamSession) error {
	settings, err := s.settings()
	if err != nil {
		return wrongSettings(err)
	}
	return s.changeEach("created", func(stream string) error { return s.client.Create(s.ctx, stream, settings...) })
}

func (s *streamSession) settings() (settings []client.Setting, err error) {
	duration := func(flag string, set func(time.Duration) client.Setting) {
		if !s.IsSet(flag) || err != nil {
			return
		}
		d, e := parseDuration(s.String(flag), time.Millisecond)
		if e != nil {
			err = fmt.Errorf("--%s is %q: write a time of 1ms or more, such as 36h or 7d", flag, s.String(flag))
		}
		settings = append(settings, set(d))
	}
	duration("retention", client.Retention)
	duration("ttl", client.TTL)
	if s.IsSet("retention-bytes") && err == nil {
		text := s.String("retention-bytes")
		n, e := parseBytes(text, 0, math.MaxInt64)
		if text == "-1" { // as in the config
			n, e = -1, nil
		}
		if e != nil {
			err = fmt.Errorf("--retention-bytes is %q: %w", text, e)
		}
		settings = append(settings, client.RetentionBytes(n))
	}
	if s.IsSet("content-type") {
		settings = append(settings, client.ContentType(s.String("content-type")))
	}
	return settings, err
}

// changedStream is a stream that a command has changed, or could not, in JSON output.
type changedStream struct {
	Name       string `json:"name"`
	NextOffset *int64 `json:"next_offset,omitempty"` // of a stream that was closed
	Error      string `json:"error,omitempty"`
}

// changeEach changes the streams that are named, and prints what became of each.
func (s *streamSession) changeEach(what string, change func(stream string) error) error {
	changes, errs := []changedStream{}, []error(nil)
	for _, name := range s.Args().Slice() {
		c := changedStream{Name: name}
		if err := change(name); err != nil {
			c.Error = err.Error()
			errs = append(errs, err)
		}
		changes = append(changes, c)
	}
	return joinErrors(s.printChanged(what, changes), errors.Join(errs...))
}

func (s *streamSession) printChanged(what string, changes []changedStream) error {
	out := output{w: s.out, json: s.String("output") == outputJSON}
	for _, c := range changes {
		if c.Error == "" {
			out.note("stream %q %s", c.Name, what)
		}
	}
	return out.print(changes)
}

// trimStreamCommand is topics trim for streams only.
func trimStreamCommand() *cli.Command {
	c := trimTopicCommand()
	c.Category = categoryStreams
	c.Usage = "delete the oldest records of a stream"
	c.ArgsUsage = "STREAM"
	c.Description = "Records before the given place are deleted for good. If --to-offset lies behind the end, nothing is deleted.\n\n" +
		"Examples:\n   brooklet trim sessions/alice --to-offset 120\n   brooklet trim sessions/alice --to-time 7d --dry-run\n" +
		"   brooklet trim sessions/alice --to-latest"
	c.Before = oneStream
	return c
}

func closeStreamsCommand() *cli.Command {
	return streamCommand(cli.Command{
		Name:        "close",
		Usage:       "close streams: they take no more records",
		ArgsUsage:   "STREAM...",
		Description: "A closed stream can be read as before, and trimmed and removed. It cannot be opened again.\n\nExample:\n   brooklet close jobs/42",
	}, []string{outputText, outputJSON}, needStreams, func(s *streamSession) error {
		return s.changeEach("closed", func(stream string) error {
			_, err := s.client.CloseStream(s.ctx, stream)
			return err
		})
	})
}

func removeStreamsCommand() *cli.Command {
	return streamCommand(cli.Command{
		Name:      "rm",
		Usage:     "delete streams with all their records",
		ArgsUsage: "STREAM... | -r PREFIX",
		Description: "Topics are not deleted: for them there is brooklet topics delete.\n\n" +
			"With -r all streams are deleted whose names begin with PREFIX, after a question; --yes answers it beforehand.\n\n" +
			"Examples:\n   brooklet rm sessions/alice sessions/bob\n   brooklet rm -r sessions/ --dry-run\n   brooklet rm -r sessions/ --yes",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "prefix", Aliases: []string{"r"}, Usage: "delete all streams whose names begin with the argument"},
			&cli.BoolFlag{Name: "yes", Aliases: []string{"y"}, Usage: "do not ask"},
			&cli.BoolFlag{Name: "dry-run", Usage: "only tell what would be deleted"},
		},
	}, []string{outputText, outputJSON}, func(c *cli.Context) error {
		switch {
		case !c.Bool("prefix"):
			return needStreams(c)
		case c.NArg() != 1:
			return wrongSettings(fmt.Errorf("name one prefix, not %d; see %s --help", c.NArg(), c.Command.HelpName))
		}
		return nil
	}, runRemoveStreams)
}

func runRemoveStreams(s *streamSession) error {
	if s.Bool("prefix") {
		return s.removePrefix(s.Args().First())
	}
	names := s.Args().Slice()
	if s.Bool("dry-run") {
		return s.changeEach("would be deleted", func(stream string) error {
			_, err := s.client.Describe(s.ctx, stream)
			return err
		})
	}
	errs, err := s.client.Delete(s.ctx, names...)
	if err != nil {
		return err
	}
	changes := make([]changedStream, len(names))
	for i, name := range names {
		if changes[i].Name = name; errs[i] != nil {
			changes[i].Error = errs[i].Error()
		}
	}
	return joinErrors(s.printChanged("deleted", changes), errors.Join(errs...))
}

// removeBatch is how many streams are deleted at a time.
const removeBatch = 1000

// removed is what rm -r has done, in JSON output.
type removed struct {
	Prefix  string `json:"prefix"`
	Streams int64  `json:"streams"`
	DryRun  bool   `json:"dry_run,omitempty"`
}

func (s *streamSession) removePrefix(prefix string) error {
	n := int64(0)
	for _, err := range s.client.List(s.ctx, prefix, "") {
		if err != nil {
			return err
		}
		n++
	}
	out := output{w: s.out, json: s.String("output") == outputJSON}
	if s.Bool("dry-run") {
		out.note("%s under %q would be deleted", counted(n, "stream"), prefix)
		return out.print(removed{prefix, n, true})
	}
	if n > 0 {
		if err := s.confirm(fmt.Sprintf("Delete %s under %q with all their records?", counted(n, "stream"), prefix)); err != nil {
			return err
		}
	}
	deleted, err := s.removeAll(prefix)
	if err != nil {
		return fmt.Errorf("%w (deleted before: %s)", err, counted(deleted, "stream"))
	}
	out.note("%s under %q deleted", counted(deleted, "stream"), prefix)
	return out.print(removed{Prefix: prefix, Streams: deleted})
}

// removeAll deletes page after page. Streams that others delete meanwhile do not matter.
func (s *streamSession) removeAll(prefix string) (deleted int64, err error) {
	var names []string
	flush := func() error {
		errs, err := s.client.Delete(s.ctx, names...)
		for _, e := range errs {
			if e == nil {
				deleted++
			} else if !errors.Is(e, client.ErrNoStream) {
				err = errors.Join(err, e)
			}
		}
		names = names[:0]
		return err
	}
	for info, err := range s.client.List(s.ctx, prefix, "") {
		if err != nil {
			return deleted, err
		}
		if names = append(names, info.Stream); len(names) == removeBatch {
			if err := flush(); err != nil {
				return deleted, err
			}
		}
	}
	return deleted, flush()
}

// confirm asks a question, unless --yes answers it. Without a terminal there is nobody to ask.
func (s *streamSession) confirm(question string) error {
	if s.Bool("yes") {
		return nil
	}
	if !isTerminal(s.in) {
		return wrongSettings(errors.New("there is no terminal to ask at: add --yes to go ahead, or --dry-run to see what would be deleted"))
	}
	fmt.Fprintf(s.errOut, "%s [y/N] ", question)
	answer, err := readLine(s.ctx, s.in)
	if err != nil {
		return err
	}
	if answer = strings.ToLower(answer); answer != "y" && answer != "yes" {
		return errors.New("nothing was deleted")
	}
	return nil
}

func readLine(ctx context.Context, in io.Reader) (string, error) {
	line := make(chan string, 1)
	go func() { // a terminal cannot be told to stop; the process ends soon
		text, _ := bufio.NewReader(in).ReadString('\n')
		line <- strings.TrimSpace(text)
	}()
	select {
	case text := <-line:
		return text, nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}
