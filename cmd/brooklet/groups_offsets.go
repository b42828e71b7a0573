package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/urfave/cli/v2"
)

// Where offsets are moved to: the flags of reset-offsets and trim, of which one is given.
const (
	goalEarliest = "to-earliest"
	goalLatest   = "to-latest"
	goalOffset   = "to-offset"
	goalTime     = "to-time"
	goalShift    = "shift-by"
)

// goal is where offsets are moved to.
type goal struct {
	kind   string
	offset int64     // of goalOffset and goalShift
	time   time.Time // of goalTime
}

// readGoal returns the goal that the flags give; exactly one of kinds must be set.
func readGoal(s *session, kinds ...string) (goal, error) {
	var g goal
	for _, kind := range kinds {
		if !s.IsSet(kind) || kind == goalEarliest && !s.Bool(kind) || kind == goalLatest && !s.Bool(kind) {
			continue
		}
		if g.kind != "" {
			return g, fmt.Errorf("--%s and --%s exclude each other", g.kind, kind)
		}
		g.kind = kind
	}
	switch g.kind {
	case "":
		return g, fmt.Errorf("say where to: --%s", strings.Join(kinds, ", --"))
	case goalOffset:
		if g.offset = s.Int64(goalOffset); g.offset < 0 {
			return g, fmt.Errorf("--%s is %d: write 0 or more", goalOffset, g.offset)
		}
	case goalShift:
		g.offset = s.Int64(goalShift)
	case goalTime:
		var err error
		if g.time, err = parsePast(s.String(goalTime), time.Now()); err != nil {
			return g, fmt.Errorf("--%s is %q: %w", goalTime, s.String(goalTime), err)
		}
	}
	return g, nil
}

// parsePast reads a time, or an age before now.
func parsePast(text string, now time.Time) (time.Time, error) {
	if t, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return t, nil
	}
	age, err := parseDuration(text, 0)
	if err != nil {
		return time.Time{}, errors.New("write a time such as 2006-01-02T15:04:05Z, or an age such as 36h or 7d")
	}
	return now.Add(-age), nil
}

// A place is a partition with all that decides where an offset moves to.
type place struct {
	topic      string
	partition  int32
	start, end int64 // of the partition
	committed  int64 // -1 if there is none
	atTime     int64 // the first record at or after the time of the goal, or the end
}

// place returns the offset that p moves to. Offsets outside of the partition become its start or end, as in Kafka's
// tools, and note says so.
func (g goal) place(p place) (offset int64, note string) {
	switch g.kind {
	case goalEarliest:
		return p.start, ""
	case goalLatest:
		return p.end, ""
	case goalTime:
		return p.atTime, ""
	}
	offset = g.offset
	if g.kind == goalShift {
		offset += max(p.committed, 0)
	}
	switch {
	case offset < p.start:
		return p.start, fmt.Sprintf("%s, partition %d: %d lies before the start, %d", topicNamed(p.topic), p.partition, offset, p.start)
	case offset > p.end:
		return p.end, fmt.Sprintf("%s, partition %d: %d lies behind the end, %d", topicNamed(p.topic), p.partition, offset, p.end)
	}
	return offset, ""
}

// topicSpec is a topic, or some of its partitions.
type topicSpec struct {
	topic      string
	partitions []int32 // nil: all
}

// parseTopicSpec reads NAME or NAME:0,2. Names of streams may end like a list of partitions, and streams have one
// partition: in a name with a slash, the colon belongs to the name. So does one that no list of partitions follows.
func parseTopicSpec(text string) topicSpec {
	at := strings.LastIndexByte(text, ':')
	if at < 0 || strings.Contains(text, "/") {
		return topicSpec{topic: text}
	}
	var partitions []int32
	for number := range strings.SplitSeq(text[at+1:], ",") {
		p, err := strconv.ParseUint(number, 10, 31)
		if err != nil {
			return topicSpec{topic: text}
		}
		partitions = append(partitions, int32(p))
	}
	return topicSpec{text[:at], partitions}
}

// findPlaces returns the partitions of specs with their bounds, in order, and for goals of a time the offsets there. No
// partition has a committed offset yet.
func (s *session) findPlaces(specs []topicSpec, g goal) ([]place, error) {
	var topics []string
	for _, spec := range specs {
		topics = append(topics, spec.topic)
	}
	if len(topics) == 0 { // kadm would take it for all topics
		return nil, nil
	}
	starts, err := s.admin.ListStartOffsets(s.ctx, topics...)
	if err != nil {
		return nil, err
	}
	ends, err := s.admin.ListEndOffsets(s.ctx, topics...)
	if err != nil {
		return nil, err
	}
	atTime := ends
	if g.kind == goalTime {
		if atTime, err = s.admin.ListOffsetsAfterMilli(s.ctx, g.time.UnixMilli(), topics...); err != nil {
			return nil, err
		}
	}
	var places []place
	var errs []error
	for _, wanted := range wantedPartitions(specs, starts) {
		start, ok := starts.Lookup(wanted.topic, wanted.partition)
		end, _ := ends.Lookup(wanted.topic, wanted.partition)
		at, _ := atTime.Lookup(wanted.topic, wanted.partition)
		err := errors.Join(start.Err, end.Err, at.Err)
		if !ok {
			err = kerr.UnknownTopicOrPartition
		}
		if err != nil {
			errs = append(errs, brokerError(wanted.name(), err, ""))
			continue
		}
		wanted.start, wanted.end, wanted.atTime, wanted.committed = start.Offset, end.Offset, at.Offset, -1
		places = append(places, wanted)
	}
	return places, joinErrors(errs...)
}

// name is how errors name the partition. Partition -1 is how kadm reports a topic that does not exist.
func (p place) name() string {
	if p.partition < 0 {
		return topicNamed(p.topic)
	}
	return fmt.Sprintf("partition %d of %s", p.partition, topicNamed(p.topic))
}

// wantedPartitions lists the partitions of specs once and in order; those that exist are in listed.
func wantedPartitions(specs []topicSpec, listed kadm.ListedOffsets) []place {
	var set kadm.TopicsSet
	for _, spec := range specs {
		_, missing := listed.Lookup(spec.topic, -1)
		if spec.partitions != nil && !missing {
			set.Add(spec.topic, spec.partitions...)
			continue
		}
		set.Add(spec.topic)
		for p := range listed[spec.topic] {
			set.Add(spec.topic, p)
		}
	}
	var wanted []place
	for _, t := range set.Sorted() {
		for _, p := range t.Partitions {
			wanted = append(wanted, place{topic: t.Topic, partition: p})
		}
	}
	return wanted
}

// movedOffset is a committed offset that reset-offsets moves, in JSON output.
type movedOffset struct {
	Topic           string `json:"topic"`
	Partition       int32  `json:"partition"`
	CommittedOffset *int64 `json:"committed_offset"` // before
	NewOffset       int64  `json:"new_offset"`
	Note            string `json:"note,omitempty"`
}

// offsetReset is what reset-offsets prints as JSON.
type offsetReset struct {
	Group      string        `json:"group"`
	Executed   bool          `json:"executed"`
	Partitions []movedOffset `json:"partitions"`
}

func resetOffsetsCommand() *cli.Command {
	return clientCommand(cli.Command{
		Name:      "reset-offsets",
		Usage:     "move the committed offsets of a group without members",
		ArgsUsage: "GROUP",
		Description: "Without --execute the new offsets are only shown. Offsets that lie outside of a partition are moved to its start or\n" +
			"end. Without --topic all partitions are moved that the group has committed offsets of.\n\n" +
			"Examples:\n   brooklet groups reset-offsets billing --to-earliest\n" +
			"   brooklet groups reset-offsets billing --topic orders --to-time 2026-01-31T08:00:00Z --execute\n" +
			"   brooklet groups reset-offsets billing --topic orders:0,2 --shift-by -100 --execute",
		Flags: []cli.Flag{
			topicFlag(),
			&cli.BoolFlag{Name: goalEarliest, Usage: "move to the oldest record"},
			&cli.BoolFlag{Name: goalLatest, Usage: "move behind the newest record"},
			&cli.Int64Flag{Name: goalOffset, Usage: "move to this `OFFSET`"},
			&cli.StringFlag{Name: goalTime, Usage: "move to the first record at or after this `TIME`, written as 2006-01-02T15:04:05Z or as an age such as 36h or 7d"},
			&cli.Int64Flag{Name: goalShift, Usage: "move by this `NUMBER` of offsets, back if it is negative"},
			&cli.BoolFlag{Name: "dry-run", Usage: "only show the new offsets; this is the default"},
			&cli.BoolFlag{Name: "execute", Usage: "move the offsets"},
		},
	}, needArguments("a group"), resetOffsets)
}

func topicFlag() cli.Flag {
	return &cli.StringSliceFlag{Name: "topic", Aliases: []string{"t"}, Usage: "only this topic or stream, or these partitions of the topic, `NAME[:PARTITION,...]`; a colon in a name with a slash belongs to the name; may be given many times"}
}

// oneGroup returns the argument of commands for one group.
func (s *session) oneGroup() (string, error) {
	if s.NArg() != 1 {
		return "", wrongSettings(fmt.Errorf("name one group, not %d", s.NArg()))
	}
	return s.Args().First(), nil
}

func (s *session) topicSpecs() (specs []topicSpec) {
	for _, text := range s.StringSlice("topic") {
		specs = append(specs, parseTopicSpec(text))
	}
	return specs
}

func resetOffsets(s *session) error {
	group, err := s.oneGroup()
	if err != nil {
		return err
	}
	g, err := readGoal(s, goalEarliest, goalLatest, goalOffset, goalTime, goalShift)
	if err != nil {
		return wrongSettings(err)
	}
	execute := s.Bool("execute")
	if execute && s.dryRun() {
		return wrongSettings(errors.New("--dry-run and --execute exclude each other"))
	}
	if execute {
		if err := checkNoMembers(s.ctx, s.admin, group); err != nil {
			return err
		}
	}
	reset := offsetReset{Group: group, Partitions: []movedOffset{}}
	if reset.Partitions, err = s.planReset(group, g); err != nil {
		return err
	}
	if execute {
		if err := s.commit(reset); err != nil {
			return err
		}
		reset.Executed = true
	}
	return s.printReset(reset)
}

// checkNoMembers makes sure that nobody commits offsets besides the command. A group that does not exist is made by
// its first offset. Members that join later make the broker refuse the commit.
func checkNoMembers(ctx context.Context, admin *kadm.Client, group string) error {
	found, err := findGroups(ctx, admin, group)
	if err != nil {
		return err
	}
	for i := range found {
		g := &found[i]
		switch {
		case !g.exists():
		case g.err != nil:
			return brokerError(groupNamed(group), g.err, g.errMessage)
		case g.State != groupEmpty && g.State != groupDead:
			return fmt.Errorf("%s is in use (state %s, %d members): stop its consumers first", groupNamed(group), g.State, len(g.Members))
		}
	}
	return nil
}

// planReset decides where each offset goes.
func (s *session) planReset(group string, g goal) ([]movedOffset, error) {
	committed, err := s.admin.FetchOffsets(s.ctx, group)
	if err != nil {
		return nil, brokerError(groupNamed(group), err, "")
	}
	specs := s.topicSpecs()
	if len(specs) == 0 {
		specs = committedSpecs(committed)
	}
	if len(specs) == 0 {
		return nil, fmt.Errorf("%s has no committed offsets: name the topics with --topic", groupNamed(group))
	}
	places, err := s.findPlaces(specs, g)
	if err != nil {
		return nil, err
	}
	return planMoves(places, committed, g)
}

// planMoves decides where each offset goes, given the bounds of its partition.
func planMoves(places []place, committed kadm.OffsetResponses, g goal) ([]movedOffset, error) {
	moves := []movedOffset{}
	var errs []error
	for _, p := range places {
		m := movedOffset{Topic: p.topic, Partition: p.partition}
		if c, ok := committed.Lookup(p.topic, p.partition); ok && c.Err == nil && c.At >= 0 {
			p.committed = c.At
			m.CommittedOffset = &c.At
		} else if g.kind == goalShift {
			errs = append(errs, fmt.Errorf("%s has no committed offset that --%s could move", p.name(), goalShift))
			continue
		}
		m.NewOffset, m.Note = g.place(p)
		moves = append(moves, m)
	}
	return moves, joinErrors(errs...)
}

// committedSpecs are the partitions with committed offsets.
func committedSpecs(committed kadm.OffsetResponses) (specs []topicSpec) {
	for topic, partitions := range committed {
		spec := topicSpec{topic: topic}
		for p, c := range partitions {
			if c.Err == nil && c.At >= 0 {
				spec.partitions = append(spec.partitions, p)
			}
		}
		if len(spec.partitions) > 0 {
			slices.Sort(spec.partitions)
			specs = append(specs, spec)
		}
	}
	return specs
}

func (s *session) commit(reset offsetReset) error {
	var offsets kadm.Offsets
	for _, m := range reset.Partitions {
		offsets.AddOffset(m.Topic, m.Partition, m.NewOffset, -1)
	}
	done, err := s.admin.CommitOffsets(s.ctx, reset.Group, offsets)
	if err != nil {
		return brokerError(groupNamed(reset.Group), err, "")
	}
	var errs []error
	for _, o := range done.Sorted() {
		if errors.Is(o.Err, kerr.UnknownMemberID) { // only members may commit as long as there are any
			return fmt.Errorf("%s is in use: stop its consumers first", groupNamed(reset.Group))
		}
		if o.Err != nil {
			errs = append(errs, brokerError(place{topic: o.Topic, partition: o.Partition}.name(), o.Err, ""))
		}
	}
	return joinErrors(errs...)
}

func (s *session) printReset(reset offsetReset) error {
	shown := newTable("TOPIC", "PARTITION", "COMMITTED", "NEW")
	for _, m := range reset.Partitions {
		shown.add(m.Topic, m.Partition, numberOrNone(m.CommittedOffset), m.NewOffset)
	}
	err := s.out.print(reset, shown)
	for _, m := range reset.Partitions {
		if m.Note != "" {
			s.out.note("%s", m.Note)
		}
	}
	if !reset.Executed {
		s.out.note("\nNothing was moved: add --execute to do it.")
	}
	return err
}

// deletedOffset is a committed offset that delete-offsets was told to delete, in JSON output.
type deletedOffset struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Error     string `json:"error,omitempty"`
}

func deleteOffsetsCommand() *cli.Command {
	return clientCommand(cli.Command{
		Name:        "delete-offsets",
		Usage:       "delete committed offsets of topics that no member of the group reads",
		ArgsUsage:   "GROUP",
		Description: "Examples:\n   brooklet groups delete-offsets billing --topic orders\n   brooklet groups delete-offsets billing --topic orders:0,2",
		Flags:       []cli.Flag{topicFlag()},
	}, needArguments("a group"), deleteOffsets)
}

func deleteOffsets(s *session) error {
	group, err := s.oneGroup()
	if err != nil {
		return err
	}
	specs := s.topicSpecs()
	if len(specs) == 0 {
		return wrongSettings(errors.New("name the topics with --topic; brooklet groups delete deletes all offsets of a group"))
	}
	committed, err := s.admin.FetchOffsets(s.ctx, group)
	if err != nil {
		return brokerError(groupNamed(group), err, "")
	}
	var wanted kadm.TopicsSet
	for _, spec := range specs {
		partitions := spec.partitions
		if partitions == nil {
			for p := range committed[spec.topic] {
				partitions = append(partitions, p)
			}
		}
		if len(partitions) == 0 {
			return fmt.Errorf("%s has no committed offsets of %s", groupNamed(group), topicNamed(spec.topic))
		}
		wanted.Add(spec.topic, partitions...)
	}
	results, err := s.admin.DeleteOffsets(s.ctx, group, wanted)
	if err != nil {
		return brokerError(groupNamed(group), err, "")
	}
	return s.printDeletedOffsets(wanted, results)
}

func (s *session) printDeletedOffsets(wanted kadm.TopicsSet, results kadm.DeleteOffsetsResponses) error {
	deleted := []deletedOffset{}
	shown := newTable("TOPIC", "PARTITION")
	var errs []error
	for _, t := range wanted.Sorted() {
		for _, partition := range t.Partitions {
			d := deletedOffset{Topic: t.Topic, Partition: partition}
			if err := brokerError(place{topic: t.Topic, partition: partition}.name(), results[t.Topic][partition], ""); err != nil {
				d.Error = err.Error()
				errs = append(errs, err)
			} else {
				shown.add(d.Topic, d.Partition)
			}
			deleted = append(deleted, d)
		}
	}
	if len(shown.rows) > 0 {
		s.out.note("Deleted offsets:")
	} else {
		shown = newTable()
	}
	return joinErrors(s.out.print(deleted, shown), errors.Join(errs...))
}
