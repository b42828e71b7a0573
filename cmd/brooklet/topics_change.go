package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/urfave/cli/v2"
)

// changedTopic is a topic that a command has changed, or was told to, in JSON output.
type changedTopic struct {
	Name       string `json:"name"`
	ID         string `json:"id,omitempty"`
	Partitions int32  `json:"partitions,omitempty"`
	DryRun     bool   `json:"dry_run,omitempty"`
	Error      string `json:"error,omitempty"`
}

// printChanges prints what became of each topic. Errors are in the JSON value and in the result.
func (s *session) printChanges(what string, changes []changedTopic, errs []error) error {
	slices.SortFunc(changes, func(a, b changedTopic) int { return cmp.Compare(a.Name, b.Name) })
	if s.dryRun() {
		what = "would be " + what
	}
	for _, c := range changes {
		if c.Error == "" {
			s.out.note("%s %s", topicNamed(c.Name), what)
		}
	}
	return joinErrors(s.out.print(changes), errors.Join(errs...))
}

func (s *session) dryRun() bool { return s.Bool("dry-run") }

func dryRunFlag() cli.Flag {
	return &cli.BoolFlag{Name: "dry-run", Usage: "only check whether it can be done"}
}

func createTopicsCommand() *cli.Command {
	return clientCommand(cli.Command{
		Name:      "create",
		Usage:     "create topics or named streams",
		ArgsUsage: "NAME...",
		Description: "Examples:\n   brooklet topics create orders --partitions 3\n" +
			"   brooklet topics create audit --config retention.ms=604800000 --config max.message.bytes=2097152\n" +
			"   brooklet topics create sessions/alice --config retention.bytes=1048576",
		Flags: []cli.Flag{
			&cli.IntFlag{Name: "partitions", Aliases: []string{"p"}, Value: -1, DefaultText: "the broker's --default-partitions", Usage: "partitions of each topic, `NUMBER`, or -1 for the default"},
			&cli.StringSliceFlag{Name: "config", Aliases: []string{"c"}, Usage: "set a config on each topic, `NAME=VALUE`; may be given many times"},
			dryRunFlag(),
		},
	}, needArguments("one or more topics or streams"), createTopics)
}

func createTopics(s *session) error {
	configs := map[string]*string{}
	for _, text := range s.StringSlice("config") {
		name, value, err := splitConfig(text)
		if err != nil {
			return wrongSettings(err)
		}
		configs[name] = &value
	}
	partitions, err := partitionCount(s.Int("partitions"))
	if err != nil {
		return wrongSettings(err)
	}
	create := s.admin.CreateTopics
	if s.dryRun() {
		create = s.admin.ValidateCreateTopics
	}
	created, err := create(s.ctx, partitions, -1, configs, s.Args().Slice()...)
	if err != nil {
		return err
	}
	changes := []changedTopic{}
	var errs []error
	for _, r := range created.Sorted() {
		c := changedTopic{Name: r.Topic, DryRun: s.dryRun()}
		if err := brokerError(topicNamed(r.Topic), r.Err, r.ErrMessage); err != nil {
			c.Error = err.Error()
			errs = append(errs, err)
		} else if c.Partitions = r.NumPartitions; !c.DryRun {
			c.ID = topicID(r.ID)
		}
		changes = append(changes, c)
	}
	return s.printChanges("created", changes, errs)
}

// partitionCount checks --partitions; -1 is the default of the broker.
func partitionCount(n int) (int32, error) {
	if n == -1 || n > 0 && n <= 1<<31-1 {
		return int32(n), nil
	}
	return 0, fmt.Errorf("--partitions is %d: write 1 or more", n)
}

// splitConfig reads NAME=VALUE.
func splitConfig(text string) (name, value string, err error) {
	name, value, ok := strings.Cut(text, "=")
	if !ok || name == "" {
		return "", "", fmt.Errorf("config %q: write NAME=VALUE, such as retention.ms=604800000", text)
	}
	return name, value, nil
}

func alterTopicsCommand() *cli.Command {
	return clientCommand(cli.Command{
		Name:      "alter",
		Aliases:   []string{"add-partitions"},
		Usage:     "add partitions to topics; for configs see brooklet configs set",
		ArgsUsage: "NAME...",
		Description: "Partitions cannot be taken away, and a named stream has one for good. Records with keys go to other partitions than\n" +
			"before once there are more.\n\nExample:\n   brooklet topics alter orders --partitions 6",
		Flags: []cli.Flag{
			&cli.IntFlag{Name: "partitions", Aliases: []string{"p"}, Usage: "partitions that each topic shall have in all, `NUMBER`"},
			dryRunFlag(),
		},
	}, needArguments("one or more topics"), alterTopics)
}

func alterTopics(s *session) error {
	total, err := partitionCount(s.Int("partitions"))
	if err == nil && total < 0 || !s.IsSet("partitions") {
		err = errors.New("set --partitions to the number that each topic shall have in all")
	}
	if err != nil {
		return wrongSettings(err)
	}
	update := s.admin.UpdatePartitions
	if s.dryRun() {
		update = s.admin.ValidateUpdatePartitions
	}
	altered, err := update(s.ctx, int(total), s.Args().Slice()...)
	if err != nil {
		return err
	}
	changes := []changedTopic{}
	var errs []error
	for _, r := range altered.Sorted() {
		c := changedTopic{Name: r.Topic, DryRun: s.dryRun()}
		if err := brokerError(topicNamed(r.Topic), r.Err, r.ErrMessage); err != nil {
			c.Error = err.Error()
			errs = append(errs, err)
		} else {
			c.Partitions = total
		}
		changes = append(changes, c)
	}
	return s.printChanges(fmt.Sprintf("extended to %d partitions", total), changes, errs)
}

func deleteTopicsCommand() *cli.Command {
	return clientCommand(cli.Command{
		Name:        "delete",
		Usage:       "delete topics or named streams with all their records",
		ArgsUsage:   "NAME...",
		Description: "Examples:\n   brooklet topics delete orders\n   brooklet topics delete sessions/alice sessions/bob",
	}, needArguments("one or more topics or streams"), deleteTopics)
}

func deleteTopics(s *session) error {
	deleted, err := s.admin.DeleteTopics(s.ctx, s.Args().Slice()...)
	if err != nil {
		return err
	}
	changes := []changedTopic{}
	var errs []error
	for _, r := range deleted.Sorted() {
		c := changedTopic{Name: r.Topic}
		if err := brokerError(topicNamed(r.Topic), r.Err, r.ErrMessage); err != nil {
			c.Error = err.Error()
			errs = append(errs, err)
		}
		changes = append(changes, c)
	}
	return s.printChanges("deleted", changes, errs)
}

// trimmedPartition is a partition that topics trim has cut, or was told to, in JSON output.
type trimmedPartition struct {
	Topic       string `json:"topic"`
	Partition   int32  `json:"partition"`
	StartOffset int64  `json:"start_offset"` // the first record that is left, or will be
	DryRun      bool   `json:"dry_run,omitempty"`
	Note        string `json:"note,omitempty"`
	Error       string `json:"error,omitempty"` // nothing was deleted
}

func trimTopicCommand() *cli.Command {
	return clientCommand(cli.Command{
		Name:      "trim",
		Aliases:   []string{"delete-records"},
		Usage:     "delete the oldest records of a topic or named stream",
		ArgsUsage: "NAME[:PARTITION,...]",
		Description: "Records before the given place are deleted for good, in all partitions or in those that are named. If --to-offset lies\n" +
			"behind the end of one of them, nothing is deleted. A stream is named as a whole: the :0 of sessions/user:0\n" +
			"belongs to the name.\n\n" +
			"Examples:\n   brooklet topics trim sessions/alice --to-offset 120\n   brooklet topics trim orders:0,2 --to-time 7d --dry-run\n" +
			"   brooklet topics trim orders --to-latest",
		Flags: []cli.Flag{
			&cli.Int64Flag{Name: "to-offset", Usage: "delete what lies before this `OFFSET`"},
			&cli.StringFlag{Name: "to-time", Usage: "delete what is older than this `TIME`, written as 2006-01-02T15:04:05Z or as an age such as 36h or 7d"},
			&cli.BoolFlag{Name: "to-latest", Usage: "delete all records that there are now"},
			dryRunFlag(),
		},
	}, needArguments("a topic or stream"), trimTopic)
}

func trimTopic(s *session) error {
	if s.NArg() != 1 {
		return wrongSettings(fmt.Errorf("name one topic or stream, not %d", s.NArg()))
	}
	goal, err := readGoal(s, goalOffset, goalTime, goalLatest)
	if err != nil {
		return wrongSettings(err)
	}
	wanted := parseTopicSpec(s.Args().First())
	places, err := s.findPlaces([]topicSpec{wanted}, goal)
	if err != nil {
		return err
	}
	trims, errs := planTrims(places, goal)
	if len(errs) == 0 && !s.dryRun() {
		if errs, err = s.trim(trims, places); err != nil {
			return err
		}
	}
	return s.printTrims(trims, errs)
}

// planTrims decides where each partition is cut. If one cannot be, none is.
func planTrims(places []place, g goal) (trims []trimmedPartition, errs []error) {
	trims = []trimmedPartition{}
	for _, p := range places {
		t := trimmedPartition{Topic: p.topic, Partition: p.partition}
		if g.kind == goalOffset && g.offset > p.end {
			err := fmt.Errorf("%s ends at %d, before %d: nothing was deleted; --%s deletes all records", p.name(), p.end, g.offset, goalLatest)
			t.Error = err.Error()
			errs = append(errs, err)
		}
		t.StartOffset, t.Note = g.place(p)
		trims = append(trims, t)
	}
	if len(errs) > 0 {
		for i := range trims {
			trims[i].StartOffset, trims[i].Note = places[i].start, ""
			trims[i].Error = cmp.Or(trims[i].Error, "nothing was deleted, because other partitions end before the offset")
		}
	}
	return trims, errs
}

// trim deletes records as planned, and puts into trims what has come of it. Places are those of trims.
func (s *session) trim(trims []trimmedPartition, places []place) (errs []error, err error) {
	var cut kadm.Offsets
	for _, t := range trims {
		cut.AddOffset(t.Topic, t.Partition, t.StartOffset, -1)
	}
	deleted, err := s.admin.DeleteRecords(s.ctx, cut)
	if err != nil {
		return nil, err
	}
	for i, p := range places {
		r, ok := deleted.Lookup(p.topic, p.partition)
		if !ok {
			r.Err = kerr.UnknownServerError
		}
		if err := brokerError(p.name(), r.Err, ""); err != nil {
			trims[i].StartOffset, trims[i].Note, trims[i].Error = p.start, "", err.Error()
			errs = append(errs, err)
			continue
		}
		trims[i].StartOffset = r.LowWatermark
	}
	return errs, nil
}

func (s *session) printTrims(trims []trimmedPartition, errs []error) error {
	shown := newTable("TOPIC", "PARTITION", "START")
	for i := range trims {
		t := &trims[i]
		if t.DryRun = s.dryRun(); t.Error == "" {
			shown.add(t.Topic, t.Partition, t.StartOffset)
		}
	}
	if len(shown.rows) == 0 {
		shown = newTable()
	}
	err := s.out.print(trims, shown)
	for _, t := range trims {
		if t.Note != "" {
			s.out.note("%s", t.Note)
		}
	}
	if s.dryRun() {
		s.out.note("\nNothing was deleted: this was a dry run.")
	}
	return joinErrors(err, errors.Join(errs...))
}
