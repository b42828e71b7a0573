package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"sync"
	"sync/atomic"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/brookletmq/brooklet/client"
)

// Values of --format.
const (
	formatLines = "lines"
	formatJSON  = "json"
	formatRaw   = "raw"
)

// maxLine bounds a line, in bytes: more than a record may have.
const maxLine = 64 << 20

func appendCommand() *cli.Command {
	return streamCommand(cli.Command{
		Name:      "append",
		Usage:     "write records to streams: arguments, or standard input line by line",
		ArgsUsage: "[STREAM [VALUE...]]",
		Description: "Every VALUE becomes a record. Without any, every line of standard input does, without its line end; empty lines\n" +
			"are left out. With --stream, each line goes to the stream of its own that its fields name:\n\n" +
			"   {1}, {2}, …   fields of a plain line, separated by white space or --delimiter\n" +
			"   {name}        what the group of that name in --match matches\n" +
			"   {a.b}         with --format json: the member b of the member a of the line's object\n\n" +
			"Lines of one stream keep their order. A line that goes nowhere ends the command with an error that names it, after\n" +
			"what came before has been written; --skip-bad counts such lines and goes on.\n\n" +
			"Examples:\n   brooklet append sessions/alice 'signed in' 'signed out'\n" +
			"   brooklet append logs/today < today.log\n" +
			"   brooklet append --format json --stream 'users/{user.id}' --key-field event < events.ndjson\n" +
			"   brooklet append --match 'blk_(?P<block>-?[0-9]+)' --all-matches --stream 'hdfs/{block}' < hdfs.log\n" +
			"   brooklet append --stream 'nodes/{4}' < machine.log",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "stream", Aliases: []string{"s"}, Usage: "`TEMPLATE` of the name of each line's stream, such as users/{user_id}"},
			&cli.StringFlag{Name: "format", Aliases: []string{"f"}, Value: formatLines, Usage: "`FORMAT` of standard input: lines, json (a JSON object a line), or raw (all of it is one record)"},
			&cli.StringFlag{Name: "match", Aliases: []string{"m"}, Usage: "regular `EXPRESSION` (RE2) that finds the fields of a line"},
			&cli.BoolFlag{Name: "all-matches", Usage: "write a line to the stream of every match, not only of the first"},
			&cli.StringFlag{Name: "delimiter", Aliases: []string{"d"}, Usage: "`TEXT` between the fields of plain lines, instead of white space"},
			&cli.StringFlag{Name: "key", Usage: "`KEY` of every record"},
			&cli.StringFlag{Name: "key-field", Usage: "`FIELD` of a line that becomes the record's key"},
			&cli.BoolFlag{Name: "skip-bad", Usage: "go on after lines that cannot be routed"},
			&cli.Int64Flag{Name: "expect", Value: -1, DefaultText: "any", Usage: "write all records at this `OFFSET` or none: what the stream's next offset must be"},
			&cli.BoolFlag{Name: "close", Usage: "close the stream behind the records: it takes no more"},
		},
	}, []string{"text", outputJSON}, checkAppend, runAppend)
}

// checkAppend looks at flags that do not go together.
func checkAppend(c *cli.Context) error {
	template := c.IsSet("stream")
	switch format := c.String("format"); {
	case format != formatLines && format != formatJSON && format != formatRaw:
		return wrongSettings(fmt.Errorf("--format is %q: write %s, %s or %s", format, formatLines, formatJSON, formatRaw))
	case template == c.Args().Present():
		return wrongSettings(fmt.Errorf("name the stream, or how to find it with --stream, and not both; see %s --help", c.Command.HelpName))
	case (c.NArg() > 1 || format == formatRaw) && (template || c.IsSet("key-field") || c.IsSet("match") || c.IsSet("delimiter")):
		return wrongSettings(errors.New("--stream, --key-field, --match and --delimiter are for lines"))
	case c.Bool("all-matches") && !c.IsSet("match"):
		return wrongSettings(errors.New("--all-matches needs --match"))
	case c.IsSet("match") && format == formatJSON:
		return wrongSettings(errors.New("--match is for plain lines, not for --format json"))
	case c.IsSet("key") && c.IsSet("key-field"):
		return wrongSettings(errors.New("--key and --key-field exclude each other"))
	case template && (c.IsSet("expect") || c.Bool("close")):
		return wrongSettings(errors.New("--expect and --close are for one stream, not for --stream"))
	case c.IsSet("expect") && c.Int64("expect") < 0:
		return wrongSettings(fmt.Errorf("--expect is %d: write 0 or more", c.Int64("expect")))
	case !template:
		return checkStreams(c, c.Args().First())
	}
	return nil
}

// appended is what append has done, in JSON output.
type appended struct {
	Stream  string  `json:"stream,omitempty"` // if there is one only
	First   *int64  `json:"first_offset,omitempty"`
	Next    *int64  `json:"next_offset,omitempty"`
	Records int64   `json:"records"`
	Streams int     `json:"streams"`
	Skipped int64   `json:"skipped_lines"`
	Bytes   int64   `json:"bytes"`
	Seconds float64 `json:"seconds"`
	Closed  bool    `json:"closed,omitempty"`
}

func runAppend(s *streamSession) error {
	if s.NArg() > 1 || s.String("format") == formatRaw || s.IsSet("expect") || s.Bool("close") {
		return s.appendOnce()
	}
	return s.appendLines()
}

// appendOnce writes all records in one append.
func (s *streamSession) appendOnce() error {
	var values [][]byte
	for _, arg := range s.Args().Tail() {
		values = append(values, []byte(arg))
	}
	if len(values) == 0 {
		input, err := io.ReadAll(s.in)
		if err != nil {
			return fmt.Errorf("reading standard input: %w", err)
		}
		values = [][]byte{input}
		if s.String("format") != formatRaw {
			values = nil
			for line := range bytes.Lines(input) {
				if line = trimLineEnd(line); len(line) > 0 {
					values = append(values, line)
				}
			}
		}
	}
	if len(values) == 0 {
		return errors.New("there is nothing to append: standard input is empty")
	}
	batch := client.Batch{Stream: s.Args().First(), Close: s.Bool("close")}
	done := appended{Stream: batch.Stream, Records: int64(len(values)), Streams: 1, Closed: batch.Close}
	if s.IsSet("expect") {
		batch.If = client.NextIs(s.Int64("expect"))
	}
	for _, value := range values {
		batch.Records = append(batch.Records, client.Record{Key: s.fixedKey(), Value: value})
		done.Bytes += int64(len(value))
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(s.ctx, s.Duration("timeout"))
	defer cancel()
	r := s.client.AppendBatches(ctx, batch)[0]
	if r.Err != nil {
		return r.Err
	}
	done.First, done.Next, done.Seconds = &r.First, &r.Next, time.Since(began).Seconds()
	return s.printAppended(&done)
}

func (s *streamSession) fixedKey() []byte {
	if !s.IsSet("key") {
		return nil
	}
	return []byte(s.String("key"))
}

func (s *streamSession) newRouter() (*router, error) {
	text := s.String("stream")
	r := &router{key: s.String("key-field"), json: s.String("format") == formatJSON, delimiter: s.String("delimiter"), all: s.Bool("all-matches")}
	if !s.IsSet("stream") {
		r.stream = &template{text: s.Args().First(), literals: []string{s.Args().First()}}
	} else {
		var err error
		if r.stream, err = parseTemplate(text); err != nil {
			return nil, fmt.Errorf("--stream %w", err)
		}
		if len(r.stream.fields) == 0 {
			if err := checkStream(r.stream.literals[0]); err != nil {
				return nil, fmt.Errorf("--stream: %w", err)
			}
		}
	}
	if s.IsSet("match") {
		var err error
		if r.match, err = regexp.Compile(s.String("match")); err != nil {
			return nil, fmt.Errorf("--match: %w", err)
		}
	}
	return r, r.checkFields()
}

// appendLines writes standard input line by line, without waiting for each.
func (s *streamSession) appendLines() error {
	r, err := s.newRouter()
	if err != nil {
		return wrongSettings(err)
	}
	ctx, cancel := context.WithCancelCause(s.ctx)
	defer cancel(nil)
	l := &lineAppender{s: s, ctx: ctx, stop: cancel, router: r, key: s.fixedKey(), streams: make(map[string]struct{})}
	began := time.Now()
	show := startProgress(s.errOut, &l.lines, &l.bytes)
	err = l.read(s.in)
	// What was sent is written whatever came then.
	if flushErr := s.client.Flush(s.ctx); flushErr != nil && err == nil {
		err = flushErr
	}
	show()
	if cause := l.failed(); cause != nil {
		err = cause
	}
	if err != nil {
		return fmt.Errorf("%w (written before: %s)", err, counted(l.acked.Load(), "record"))
	}
	done := appended{Records: l.acked.Load(), Streams: len(l.streams), Skipped: l.skipped, Bytes: l.bytes.Load(), Seconds: time.Since(began).Seconds()}
	if !s.IsSet("stream") {
		done.Stream = s.Args().First()
		l.mu.Lock()
		if done.Records > 0 {
			done.First, done.Next = &l.first, &l.next
		}
		l.mu.Unlock()
	}
	return s.printAppended(&done)
}

// lineAppender routes lines.
type lineAppender struct {
	s      *streamSession
	ctx    context.Context // ends when an append has failed
	stop   context.CancelCauseFunc
	router *router
	key    []byte

	streams      map[string]struct{}
	skipped      int64
	lines, bytes atomic.Int64 // read
	acked        atomic.Int64 // records

	mu          sync.Mutex
	err         error // of the first append that failed
	first, next int64 // offsets, of a single stream
}

func (l *lineAppender) failed() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// read reads to the end, or to the first error.
func (l *lineAppender) read(in io.Reader) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 1<<20), maxLine)
	var to []route
	for number := int64(1); lines.Scan(); number++ {
		line := trimLineEnd(lines.Bytes())
		l.lines.Add(1)
		l.bytes.Add(int64(len(line)) + 1)
		if len(line) == 0 {
			continue
		}
		var err error
		if to, err = l.router.routes(line, to[:0]); err != nil {
			err = fmt.Errorf("line %d: %w: %s", number, err, shorten(string(line)))
			if !l.s.Bool("skip-bad") {
				return fmt.Errorf("%w; --skip-bad goes on after such lines", err)
			}
			l.skip(err)
			continue
		}
		value := bytes.Clone(line)
		for _, r := range to {
			if err := l.append(number, r, value); err != nil {
				return err
			}
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("reading standard input: %w", err)
	}
	return nil
}

// shownBad is how many bad lines are shown.
const shownBad = 10

func (l *lineAppender) skip(err error) {
	l.skipped++
	if l.skipped <= shownBad {
		fmt.Fprintf(l.s.errOut, "skipped: %v\n", err)
	}
	if l.skipped == shownBad {
		fmt.Fprintln(l.s.errOut, "skipped: further lines are only counted")
	}
}

func (l *lineAppender) append(number int64, r route, value []byte) error {
	l.streams[r.stream] = struct{}{}
	if r.key == nil {
		r.key = l.key
	}
	err := l.s.client.AppendAsync(l.ctx, client.Batch{Stream: r.stream, Records: []client.Record{{Key: r.key, Value: value}}}, func(result client.Result) {
		if result.Err != nil {
			l.fail(fmt.Errorf("line %d: %w", number, result.Err))
			return
		}
		if l.acked.Add(1) == 1 {
			l.first = result.First
		}
		l.next = result.Next
	})
	if l.ctx.Err() != nil && l.s.ctx.Err() == nil {
		return context.Cause(l.ctx)
	}
	return err
}

// fail notes the first failure, which stops the reading.
func (l *lineAppender) fail(err error) {
	l.mu.Lock()
	if l.err == nil {
		l.err = err
	}
	l.mu.Unlock()
	l.stop(err)
}

// trimLineEnd removes \n or \r\n.
func trimLineEnd(line []byte) []byte {
	line = bytes.TrimSuffix(line, []byte("\n"))
	return bytes.TrimSuffix(line, []byte("\r"))
}

func (s *streamSession) printAppended(a *appended) error {
	if s.String("output") == outputJSON {
		e := json.NewEncoder(s.out)
		e.SetEscapeHTML(false)
		return e.Encode(a)
	}
	switch {
	case a.First != nil:
		fmt.Fprintf(s.out, "%s appended to %s at offset %d", counted(a.Records, "record"), a.Stream, *a.First)
	case a.Stream != "":
		fmt.Fprintf(s.out, "0 records appended to %s", a.Stream)
	default:
		fmt.Fprintf(s.out, "%s appended to %s", counted(a.Records, "record"), counted(int64(a.Streams), "stream"))
	}
	if a.Skipped > 0 {
		fmt.Fprintf(s.out, ", %s skipped", counted(a.Skipped, "line"))
	}
	if a.Closed {
		fmt.Fprint(s.out, ", which is closed now")
	}
	fmt.Fprintln(s.out)
	return nil
}

func counted(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// progressEvery is the time between two updates of the progress line.
const progressEvery = 200 * time.Millisecond

// startProgress shows on a terminal how many lines were read, until the function that it returns is called.
func startProgress(terminal io.Writer, lines, size *atomic.Int64) (stop func()) {
	if !isTerminal(terminal) {
		return func() {}
	}
	done, ended := make(chan struct{}), make(chan struct{})
	began := time.Now()
	go func() {
		defer close(ended)
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				n := lines.Load()
				rate := float64(n) / time.Since(began).Seconds()
				fmt.Fprintf(terminal, "\r%d lines, %.0f MB, %.0f lines/s   ", n, float64(size.Load())/1e6, rate)
			case <-done:
				fmt.Fprint(terminal, "\r\x1b[K")
				return
			}
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}
