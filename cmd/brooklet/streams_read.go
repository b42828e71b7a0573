package main

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"time"
	"unicode/utf8"

	"github.com/urfave/cli/v2"

	"github.com/brookletmq/brooklet/client"
)

const (
	outputText = "text"
	outputRaw  = "raw"
)

var recordOutputs = []string{outputText, outputJSON, outputRaw}

const recordOutputHelp = "--output text prints a value a line, raw the values as they are with nothing between them, and json an object a line with\n" +
	"stream, offset, timestamp (ms since 1970), key, value and headers; what is no UTF-8 is in key_base64 or value_base64."

func readCommand() *cli.Command {
	return streamCommand(cli.Command{
		Name:      "read",
		Usage:     "print what a stream holds",
		ArgsUsage: "STREAM",
		Description: recordOutputHelp + "\n\n" +
			"Examples:\n   brooklet read sessions/alice\n   brooklet read sessions/alice --from 120 --limit 10 --output json\n   brooklet read sessions/alice --from 1h",
		Flags: []cli.Flag{
			fromFlag("start"),
			&cli.Int64Flag{Name: "limit", Aliases: []string{"n"}, DefaultText: "all", Usage: "print `NUMBER` records at most"},
		},
	}, recordOutputs, func(c *cli.Context) error {
		if err := checkLimit(c); err != nil {
			return err
		}
		return oneStream(c)
	}, runRead)
}

func runRead(s *streamSession) error {
	from, err := readPosition(s.String("from"))
	if err != nil {
		return err
	}
	stream := s.Args().First()
	if _, err := s.client.Describe(s.ctx, stream); err != nil {
		return err // a name that is mistyped is no empty stream
	}
	return s.printRecords(s.client.Read(s.ctx, stream, from), s.Int64("limit"), nil)
}

func tailCommand() *cli.Command {
	return streamCommand(cli.Command{
		Name:      "tail",
		Usage:     "print the last records of a stream, or follow one, or all under a prefix",
		ArgsUsage: "[STREAM]",
		Description: "With -f the command goes on with what comes, until it is interrupted; a stream that does not exist yet is waited for.\n" +
			"With --prefix it follows all streams whose names begin with it, those included that are made later, from their\n" +
			"end or with --from start from their start. --cursor keeps in a file what was printed; the next run goes on there.\n\n" +
			recordOutputHelp + "\n\n" +
			"Examples:\n   brooklet tail sessions/alice\n   brooklet tail -f sessions/alice\n   brooklet tail -f sessions/alice --from 120\n" +
			"   brooklet tail -f --prefix sessions/ --output json\n   brooklet tail -f --prefix sessions/ --from start --cursor sessions.cursor",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "go on with records that come"},
			&cli.StringFlag{Name: "prefix", Usage: "follow all streams whose names begin with `PREFIX`"},
			&cli.Int64Flag{Name: "lines", Aliases: []string{"n"}, Value: 10, Usage: "begin `NUMBER` records before the end of the stream"},
			fromFlag(""),
			&cli.Int64Flag{Name: "limit", DefaultText: "all", Usage: "end after `NUMBER` records"},
			&cli.StringFlag{Name: "cursor", TakesFile: true, Usage: "`FILE` with the position under the prefix, made if it does not exist"},
		},
	}, recordOutputs, checkTail, runTail)
}

func checkTail(c *cli.Context) error {
	prefix := c.IsSet("prefix")
	switch {
	case prefix && c.Args().Present():
		return wrongSettings(errors.New("name a stream, or a --prefix, and not both"))
	case prefix && !c.Bool("follow"):
		return wrongSettings(errors.New("--prefix needs -f: the records of several streams have no common end"))
	case prefix && c.IsSet("lines"):
		return wrongSettings(errors.New("--lines is for one stream, not for --prefix"))
	case prefix && c.IsSet("from") && c.String("from") != "start" && c.String("from") != "end":
		return wrongSettings(fmt.Errorf("--from is %q: with --prefix write start or end", c.String("from")))
	case !prefix && c.IsSet("cursor"):
		return wrongSettings(errors.New("--cursor needs --prefix"))
	case c.IsSet("lines") && c.IsSet("from"):
		return wrongSettings(errors.New("--lines and --from exclude each other"))
	case c.Int64("lines") < 0:
		return wrongSettings(fmt.Errorf("--lines is %d: write 0 or more", c.Int64("lines")))
	}
	if err := checkLimit(c); err != nil || prefix {
		return err
	}
	return oneStream(c)
}

func runTail(s *streamSession) error {
	if s.IsSet("prefix") {
		return s.tailPrefix()
	}
	stream := s.Args().First()
	info, err := s.client.Describe(s.ctx, stream)
	if err != nil && !(errors.Is(err, client.ErrNoStream) && s.Bool("follow")) {
		return err
	}
	from := client.At(max(info.Start, info.Next-s.Int64("lines")))
	if s.IsSet("from") {
		if from, err = readPosition(s.String("from")); err != nil {
			return err
		}
	}
	if !s.Bool("follow") {
		return s.printRecords(s.client.Read(s.ctx, stream, from), s.Int64("limit"), nil)
	}
	return s.printRecords(s.client.Follow(s.ctx, stream, from), s.Int64("limit"), nil)
}

func (s *streamSession) tailPrefix() error {
	cursor := client.FromEnd()
	if s.String("from") == "start" {
		cursor = new(client.Cursor)
	}
	file := s.String("cursor")
	if file == "" {
		return s.printRecords(s.client.FollowPrefix(s.ctx, s.String("prefix"), cursor), s.Int64("limit"), nil)
	}
	text, err := os.ReadFile(file)
	if err == nil {
		err = cursor.UnmarshalText(text)
	} else if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	if err == nil {
		err = tryCursor(file)
	}
	if err != nil {
		return fmt.Errorf("cursor %s: %w", file, err)
	}
	return s.printRecords(s.client.FollowPrefix(s.ctx, s.String("prefix"), cursor), s.Int64("limit"), func() error { return saveCursor(file, cursor) })
}

// tryCursor makes sure that saveCursor can make its file, before records are printed that it would not know of.
func tryCursor(file string) error {
	f, err := createBeside(file)
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// createBeside makes the file that is to replace another.
func createBeside(file string) (*os.File, error) {
	return os.CreateTemp(filepath.Dir(file), filepath.Base(file)+".*")
}

// saveCursor replaces the file whole.
func saveCursor(file string, cursor *client.Cursor) error {
	text, err := cursor.MarshalText()
	if err != nil {
		return err
	}
	f, err := createBeside(file)
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// saveEvery is the time between two saves of a cursor.
const saveEvery = time.Second

// printRecords prints records until there are no more, limit of them if it is positive. save, which may be nil, is called
// now and then, and at the end, with all records printed that were handed out.
func (s *streamSession) printRecords(records iter.Seq2[*client.Record, error], limit int64, save func() error) (err error) {
	w := &recordWriter{w: bufio.NewWriter(s.out), format: s.String("output")}
	saved := time.Now()
	keep := func() error {
		if err := w.w.Flush(); err != nil || save == nil {
			return err
		}
		saved = time.Now()
		return save()
	}
	n := int64(0)
	for r, err := range records {
		if err != nil {
			if s.ctx.Err() != nil && s.Bool("follow") {
				err = nil // the way to end it
			}
			return errors.Join(err, keep())
		}
		if err := w.write(r); err != nil {
			return err
		}
		if n++; n == limit {
			break
		}
		if s.Bool("follow") {
			// Somebody looks on.
			if err := w.w.Flush(); err != nil {
				return err
			}
			if time.Since(saved) > saveEvery {
				if err := keep(); err != nil {
					return err
				}
			}
		}
	}
	return keep()
}

// recordWriter prints records.
type recordWriter struct {
	w      *bufio.Writer
	format string
}

// printedRecord is a record in JSON output.
type printedRecord struct {
	Stream      string          `json:"stream"`
	Offset      int64           `json:"offset"`
	Timestamp   int64           `json:"timestamp"`
	Key         *string         `json:"key,omitempty"`
	KeyBase64   *string         `json:"key_base64,omitempty"`
	Value       *string         `json:"value,omitempty"`
	ValueBase64 *string         `json:"value_base64,omitempty"`
	Headers     []printedHeader `json:"headers,omitempty"`
}

type printedHeader struct {
	Key         string  `json:"key"`
	Value       *string `json:"value,omitempty"`
	ValueBase64 *string `json:"value_base64,omitempty"`
}

func (w *recordWriter) write(r *client.Record) error {
	switch w.format {
	case outputJSON:
		return w.writeJSON(r)
	case outputRaw:
		_, err := w.w.Write(r.Value)
		return err
	}
	if _, err := w.w.Write(r.Value); err != nil {
		return err
	}
	return w.w.WriteByte('\n')
}

func (w *recordWriter) writeJSON(r *client.Record) error {
	p := printedRecord{Stream: r.Stream, Offset: r.Offset, Timestamp: r.Timestamp.UnixMilli()}
	p.Key, p.KeyBase64 = textOrBase64(r.Key)
	p.Value, p.ValueBase64 = textOrBase64(r.Value)
	for _, h := range r.Headers {
		printed := printedHeader{Key: h.Key}
		printed.Value, printed.ValueBase64 = textOrBase64(h.Value)
		p.Headers = append(p.Headers, printed)
	}
	e := json.NewEncoder(w.w)
	e.SetEscapeHTML(false)
	return e.Encode(p)
}

// textOrBase64 returns b as text if it is UTF-8, else in base64; both are nil for null.
func textOrBase64(b []byte) (text, encoded *string) {
	switch {
	case b == nil:
		return nil, nil
	case utf8.Valid(b):
		s := string(b)
		return &s, nil
	}
	s := base64.StdEncoding.EncodeToString(b)
	return nil, &s
}
