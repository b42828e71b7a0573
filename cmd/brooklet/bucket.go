package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/brookletmq/brooklet/objstore"
	"github.com/brookletmq/brooklet/streamstore"
)

func bucketCommand() *cli.Command {
	return commandGroup(cli.Command{
		Name:        "bucket",
		Usage:       "check what is in a bucket, and remove what nothing needs",
		Description: "These commands read the bucket itself; the broker that uses it may run or not.",
		Subcommands: []*cli.Command{checkBucketCommand(), collectBucketCommand()},
	})
}

func checkBucketCommand() *cli.Command {
	return bucketTool(cli.Command{
		Name:  "check",
		Usage: "read all records in a bucket and prove that they are whole",
		Description: "Builds the index from the commit log, then reads every object that it names: each record must be there, with the\n" +
			"right checksum, and offsets must have no gaps. The checkpoints that are kept must be whole. Nothing is changed. It reads as many bytes as the bucket holds.\n" +
			"The exit code is 1 if anything is wrong.\n\n" +
			"Examples:\n   brooklet bucket check --bucket file:///var/lib/brooklet/bucket\n   brooklet bucket check --bucket s3://records/prod --output json",
	}, checkBucket)
}

func collectBucketCommand() *cli.Command {
	return bucketTool(cli.Command{
		Name:  "gc",
		Usage: "find objects that nothing names, which a crash in the middle of a compaction or checkpoint leaves behind, and remove them",
		Description: "Without --yes it only tells what it would remove. What a running broker may still be about to use is never removed.\n" +
			"Parts of an obsolete checkpoint go with the run after the one that removes the checkpoint.\n" +
			"The two checkpoints that a start with an empty disk relies on are read first; nothing goes on the strength of a damaged one.\n\n" +
			"Examples:\n   brooklet bucket gc --bucket s3://records/prod\n   brooklet bucket gc --bucket s3://records/prod --yes",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "min-age", Value: "24h", Usage: "`TIME` since an object was made, below which it stays"},
			&cli.BoolFlag{Name: "yes", Usage: "remove what is found"},
		},
	}, collectBucket)
}

// bucketTool is a command on a bucket that it opens by itself.
func bucketTool(c cli.Command, run func(*cli.Context, output, streamstore.BucketOptions) error) *cli.Command {
	c.OnUsageError = usageError
	c.HideHelpCommand = true
	c.ArgsUsage = " "
	c.Before = noArguments
	c.Flags = append(c.Flags,
		&cli.StringFlag{Name: "bucket", EnvVars: []string{envPrefix + "BUCKET"}, Usage: "the bucket, a `URL` or file as for brooklet serve"},
		&cli.StringFlag{Name: "work-dir", Usage: "`FOLDER` below which the index is built and removed again; default: the system's temporary folder"},
		&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Value: outputTable, Usage: "`FORMAT` of what is printed: table for people, json for programs"},
	)
	c.Action = func(c *cli.Context) error { return runBucketTool(c, run) }
	return &c
}

func runBucketTool(c *cli.Context, run func(*cli.Context, output, streamstore.BucketOptions) error) error {
	out, err := newOutput(c.App.Writer, c.String("output"))
	if err != nil {
		return wrongSettings(err)
	}
	if c.String("bucket") == "" {
		return wrongSettings(errors.New("--bucket is not set: write the URL of the bucket, such as s3://records/prod or file:///var/lib/brooklet/bucket"))
	}
	bucket, err := openExistingBucket(c.Context, c.String("bucket"))
	if err != nil {
		return wrongSettings(fmt.Errorf("--bucket: %w", err))
	}
	dir, err := os.MkdirTemp(c.String("work-dir"), "brooklet-bucket-")
	if err != nil {
		return errors.Join(err, bucket.Close())
	}
	err = run(c, out, streamstore.BucketOptions{Bucket: bucket, Dir: dir})
	return joinErrors(err, os.RemoveAll(dir), bucket.Close())
}

// openExistingBucket opens a bucket without writing to it. A folder must be there.
func openExistingBucket(ctx context.Context, address string) (objstore.Bucket, error) {
	return objstore.Open(ctx, objstore.Options{URL: address, SkipProbe: true, Existing: true})
}

// bucketListing is a report in JSON output.
type bucketListing struct {
	Commit         uint64          `json:"commit"`
	Epoch          uint64          `json:"epoch"`
	Streams        int64           `json:"streams"`
	LogObjects     int64           `json:"log_objects"`
	Segments       int64           `json:"segments"`
	Checkpoints    int64           `json:"checkpoints"`
	Parts          int64           `json:"checkpoint_parts"`
	BucketBytes    int64           `json:"bucket_bytes"`
	LiveBytes      int64           `json:"live_bytes"`
	CheckedObjects int64           `json:"checked_objects"`
	Problems       []bucketProblem `json:"problems"`
	Garbage        []bucketGarbage `json:"garbage"`
}

type bucketProblem struct {
	Object string `json:"object"`
	Stream string `json:"stream"`
	First  int64  `json:"first_offset"`
	Last   int64  `json:"last_offset"`
	Error  string `json:"error"`
}

type bucketGarbage struct {
	Object  string `json:"object"`
	Bytes   int64  `json:"bytes"`
	Created string `json:"created"` // RFC 3339; "" if unknown
	Stays   string `json:"stays"`   // why; "" if nothing needs it
	Removed bool   `json:"removed"`
}

func checkBucket(c *cli.Context, out output, opts streamstore.BucketOptions) error {
	report, err := streamstore.CheckBucket(c.Context, opts)
	if err != nil {
		return err
	}
	l := newBucketListing(report)
	summary := newTable()
	summary.add("Newest commit", l.Commit)
	summary.add("Epoch of the newest writer", l.Epoch)
	summary.add("Streams", l.Streams)
	summary.add("Objects of the commit log", l.LogObjects)
	summary.add("Segments", l.Segments)
	summary.add("Checkpoints", l.Checkpoints)
	summary.add("Parts of checkpoints", l.Parts)
	summary.add("Bytes of these objects", l.BucketBytes)
	summary.add("Bytes that can be read", l.LiveBytes)
	summary.add("Objects read and checked", l.CheckedObjects)
	tables := []*table{summary}
	if len(l.Problems) > 0 {
		problems := newTable("OBJECT", "STREAM", "OFFSETS", "PROBLEM")
		for _, p := range l.Problems {
			offsets := fmt.Sprintf("%d-%d", p.First, p.Last)
			if p.Stream == "" && p.Last == 0 {
				offsets = "" // of a checkpoint
			}
			problems.add(p.Object, p.Stream, offsets, p.Error)
		}
		tables = append(tables, problems)
	}
	if len(l.Garbage) > 0 {
		tables = append(tables, l.garbageTable())
	}
	if err := out.print(l, tables...); err != nil {
		return err
	}
	if n := len(l.Problems); n > 0 {
		return fmt.Errorf("%d runs of records or checkpoints cannot be read", n)
	}
	out.note("\nAll is well: the records and the checkpoints that are kept are whole.")
	return nil
}

func collectBucket(c *cli.Context, out output, opts streamstore.BucketOptions) error {
	minAge, err := parseDuration(c.String("min-age"), 0)
	if err != nil {
		return wrongSettings(fmt.Errorf("--min-age is %q: %w", c.String("min-age"), err))
	}
	report, err := streamstore.CollectGarbage(c.Context, opts, minAge, c.Bool("yes"))
	if err != nil {
		return err
	}
	l := newBucketListing(report)
	var tables []*table
	if len(l.Garbage) > 0 {
		tables = append(tables, l.garbageTable())
	}
	if err := out.print(l.Garbage, tables...); err != nil {
		return err
	}
	out.note("%s", collected(report.Garbage))
	return nil
}

// collected says in a sentence what became of garbage.
func collected(garbage []streamstore.GarbageObject) string {
	free, removed, checkpoints := 0, 0, 0
	for _, g := range garbage {
		switch {
		case g.Deleted && g.Checkpoint:
			checkpoints++
			removed++
		case g.Deleted:
			removed++
		case g.InUse == "":
			free++
		}
	}
	switch {
	case len(garbage) == 0:
		return "There is nothing to remove: no object is without use."
	case free > 0:
		return fmt.Sprintf("\nNothing was removed; objects that --yes removes: %d.", free)
	case checkpoints > 0:
		return fmt.Sprintf("\nRemoved objects: %d. Obsolete checkpoints were among them; run this again to remove the parts that only they had.", removed)
	case removed > 0:
		return fmt.Sprintf("\nRemoved objects: %d.", removed)
	}
	return "\nThere is nothing to remove now."
}

func newBucketListing(r streamstore.BucketReport) bucketListing {
	l := bucketListing{
		Commit: r.Commit, Epoch: r.Epoch, Streams: r.Streams, LogObjects: r.LogObjects, Segments: r.Segments, Checkpoints: r.Checkpoints, Parts: r.CheckpointParts,
		BucketBytes: r.BucketBytes, LiveBytes: r.LiveBytes, CheckedObjects: r.CheckedObjects,
		Problems: []bucketProblem{}, Garbage: []bucketGarbage{},
	}
	for _, p := range r.Problems {
		l.Problems = append(l.Problems, bucketProblem{p.Object, p.Stream, p.Base, p.Last, p.Err.Error()})
	}
	for _, g := range r.Garbage {
		created := ""
		if !g.Created.IsZero() {
			created = g.Created.UTC().Format(time.RFC3339)
		}
		l.Garbage = append(l.Garbage, bucketGarbage{g.Name, g.Bytes, created, g.InUse, g.Deleted})
	}
	return l
}

func (l *bucketListing) garbageTable() *table {
	t := newTable("OBJECT", "BYTES", "CREATED", "STATE")
	for _, g := range l.Garbage {
		state := "nothing names it"
		switch {
		case g.Removed:
			state = "removed"
		case g.Stays != "":
			state = "stays: " + g.Stays
		}
		t.add(g.Object, g.Bytes, g.Created, state)
	}
	return t
}
