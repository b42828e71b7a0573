package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/urfave/cli/v2"
)

// Types of groups, as brokers name them.
const (
	groupClassic  = "classic"
	groupConsumer = "consumer" // the broker assigns the partitions (KIP-848)
)

// States of groups that matter here.
const (
	groupEmpty = "Empty"
	groupDead  = "Dead"
)

// groupDescription is a group in JSON output.
type groupDescription struct {
	Name            string              `json:"name"`
	State           string              `json:"state"`
	Type            string              `json:"type"` // classic or consumer
	ProtocolType    string              `json:"protocol_type"`
	Protocol        string              `json:"protocol"`         // how partitions are assigned
	Epoch           *int32              `json:"epoch"`            // of consumer groups: grows with each change of members or topics
	AssignmentEpoch *int32              `json:"assignment_epoch"` // of consumer groups: the epoch that partitions are assigned for
	Coordinator     int32               `json:"coordinator"`
	TotalLag        *int64              `json:"total_lag"` // null if the lag of some partition is not known
	Members         []memberDescription `json:"members"`
	Partitions      []groupPartition    `json:"partitions"`
}

type memberDescription struct {
	ID         string             `json:"id"`
	InstanceID *string            `json:"instance_id"`
	ClientID   string             `json:"client_id"`
	Host       string             `json:"host"`
	Epoch      *int32             `json:"epoch"`    // of members of consumer groups
	Assigned   []memberAssignment `json:"assigned"` // of groups of consumers
}

type memberAssignment struct {
	Topic      string  `json:"topic"`
	Partitions []int32 `json:"partitions"`
}

// groupPartition is a partition that a group has committed an offset of, or that a member reads. Null stands for what
// there is not.
type groupPartition struct {
	Topic           string  `json:"topic"`
	Partition       int32   `json:"partition"`
	CommittedOffset *int64  `json:"committed_offset"`
	EndOffset       *int64  `json:"end_offset"`
	Lag             *int64  `json:"lag"` // records from the committed offset, or else the start, to the end
	MemberID        *string `json:"member_id"`
	Error           string  `json:"error,omitempty"`
}

func describeGroupsCommand() *cli.Command {
	return clientCommand(cli.Command{
		Name:        "describe",
		Usage:       "show members, committed offsets and lag",
		ArgsUsage:   "GROUP...",
		Description: "Examples:\n   brooklet groups describe billing\n   brooklet groups describe billing --output json",
	}, needArguments("one or more groups"), describeGroups)
}

func describeGroups(s *session) error {
	found, err := findGroups(s.ctx, s.admin, s.Args().Slice()...)
	if err != nil {
		return err
	}
	offsets, err := s.findGroupOffsets(found)
	if err != nil {
		return err
	}
	descriptions := []groupDescription{}
	var tables []*table
	var errs []error
	for i := range found {
		g := &found[i]
		if err := errors.Join(g.err, offsets.committed[g.Name].Err); err != nil {
			errs = append(errs, brokerError(groupNamed(g.Name), err, g.errMessage))
			continue
		}
		g.addPartitions(offsets)
		descriptions = append(descriptions, g.groupDescription)
		tables = append(tables, g.tables()...)
	}
	err = s.out.print(descriptions, tables...)
	for _, d := range descriptions {
		d.noteErrors(s.out)
	}
	return joinErrors(err, errors.Join(errs...))
}

func groupNamed(name string) string { return fmt.Sprintf("group %q", name) }

// foundGroup is a group of either type, or why it cannot be described.
type foundGroup struct {
	groupDescription          // without partitions and lag
	subscribed       []string // topics that members want to read, whether or not partitions are assigned yet
	err              error
	errMessage       string
}

// exists is false if neither request for groups knows the group.
func (g *foundGroup) exists() bool { return !errors.Is(g.err, kerr.GroupIDNotFound) }

// findGroups describes groups of either type, in the order of their names. Each type has its own request, for which
// groups of the other type do not exist. A group that changes its type between the two may be missed.
func findGroups(ctx context.Context, admin *kadm.Client, names ...string) ([]foundGroup, error) {
	classic, err := admin.DescribeGroups(ctx, names...)
	if err != nil {
		return nil, err
	}
	var found []foundGroup
	var others []string
	for _, g := range classic.Sorted() {
		// Before version 6 of the request, Dead is how brokers describe groups that do not exist.
		if errors.Is(g.Err, kerr.GroupIDNotFound) || g.Err == nil && g.State == groupDead {
			others = append(others, g.Group)
			continue
		}
		found = append(found, foundClassic(&g))
	}
	if len(others) > 0 { // kadm would take none for all groups
		consumer, err := admin.DescribeConsumerGroups(ctx, others...)
		if err != nil {
			return nil, err
		}
		for _, g := range consumer.Sorted() {
			found = append(found, foundConsumer(&g))
		}
	}
	slices.SortFunc(found, func(a, b foundGroup) int { return cmp.Compare(a.Name, b.Name) })
	return found, nil
}

func foundClassic(g *kadm.DescribedGroup) foundGroup {
	f := foundGroup{
		groupDescription: groupDescription{
			Name: g.Group, State: g.State, Type: groupClassic, ProtocolType: g.ProtocolType, Protocol: g.Protocol,
			Coordinator: g.Coordinator.NodeID, Members: []memberDescription{}, Partitions: []groupPartition{},
		},
		err: g.Err, errMessage: g.ErrMessage,
	}
	for _, m := range g.Members {
		var set kadm.TopicsSet
		if assigned, ok := m.Assigned.AsConsumer(); ok {
			for _, t := range assigned.Topics {
				set.Add(t.Topic, t.Partitions...)
			}
		}
		if wanted, ok := m.Join.AsConsumer(); ok {
			f.subscribed = append(f.subscribed, wanted.Topics...)
		}
		f.Members = append(f.Members, newMemberDescription(m.MemberID, m.InstanceID, m.ClientID, m.ClientHost, set))
	}
	return f
}

func foundConsumer(g *kadm.DescribedConsumerGroup) foundGroup {
	f := foundGroup{
		groupDescription: groupDescription{
			Name: g.Group, State: g.State, Type: groupConsumer, ProtocolType: "consumer", Protocol: g.AssignorName,
			Epoch: &g.Epoch, AssignmentEpoch: &g.AssignmentEpoch,
			Coordinator: g.Coordinator.NodeID, Members: []memberDescription{}, Partitions: []groupPartition{},
		},
		subscribed: g.SubscribedTopics(),
		err:        g.Err,
	}
	for _, m := range g.Members {
		member := newMemberDescription(m.MemberID, m.InstanceID, m.ClientID, m.ClientHost, m.Assignment)
		member.Epoch = &m.MemberEpoch
		f.Members = append(f.Members, member)
	}
	return f
}

func newMemberDescription(id string, instanceID *string, clientID, host string, assigned kadm.TopicsSet) memberDescription {
	m := memberDescription{ID: id, InstanceID: instanceID, ClientID: clientID, Host: strings.TrimPrefix(host, "/"), Assigned: []memberAssignment{}}
	for _, t := range assigned.Sorted() {
		m.Assigned = append(m.Assigned, memberAssignment{t.Topic, t.Partitions})
	}
	return m
}

// groupOffsets is what the lag of groups follows from.
type groupOffsets struct {
	committed    kadm.FetchOffsetsResponses // by group
	starts, ends kadm.ListedOffsets         // of all topics that a group reads, or has committed offsets of
}

// findGroupOffsets asks for the committed offsets of those groups that could be described, and for the bounds of the
// partitions of their topics.
func (s *session) findGroupOffsets(found []foundGroup) (groupOffsets, error) {
	var names []string
	for _, g := range found {
		if g.err == nil {
			names = append(names, g.Name)
		}
	}
	o := groupOffsets{committed: s.admin.FetchManyOffsets(s.ctx, names...)}
	topics := o.committed.CommittedPartitions()
	for _, g := range found {
		topics.MergeTopics(g.topics(o.committed[g.Name].Fetched))
	}
	if len(topics) == 0 { // kadm would take none for all topics
		return o, nil
	}
	var err error
	if o.starts, err = s.admin.ListStartOffsets(s.ctx, topics.Topics()...); !partlyListed(err) {
		return o, err
	}
	if o.ends, err = s.admin.ListEndOffsets(s.ctx, topics.Topics()...); !partlyListed(err) {
		return o, err
	}
	return o, nil
}

// partlyListed tells whether some brokers have answered. The partitions of the others have no known lag.
func partlyListed(err error) bool {
	shards, ok := errors.AsType[*kadm.ShardErrors](err)
	return err == nil || ok && !shards.AllFailed
}

// topics are those that the group reads, or has committed offsets of.
func (g *foundGroup) topics(committed kadm.OffsetResponses) []string {
	var set kadm.TopicsSet
	for _, topic := range g.subscribed {
		set.Add(topic)
	}
	for topic := range committed {
		set.Add(topic)
	}
	for _, m := range g.Members {
		for _, a := range m.Assigned {
			set.Add(a.Topic)
		}
	}
	return set.Topics()
}

// addPartitions fills in all partitions of the topics of the group, and the lag.
func (g *foundGroup) addPartitions(o groupOffsets) {
	committed := o.committed[g.Name].Fetched
	var set kadm.TopicsSet
	for _, topic := range g.topics(committed) {
		for p := range o.ends[topic] {
			if p >= 0 { // -1 is how kadm reports a topic that does not exist
				set.Add(topic, p)
			}
		}
		for p := range committed[topic] {
			set.Add(topic, p)
		}
	}
	readers := map[string]map[int32]*string{}
	for i := range g.Members {
		for _, a := range g.Members[i].Assigned {
			set.Add(a.Topic, a.Partitions...)
			if readers[a.Topic] == nil {
				readers[a.Topic] = map[int32]*string{}
			}
			for _, p := range a.Partitions {
				readers[a.Topic][p] = &g.Members[i].ID
			}
		}
	}
	for _, t := range set.Sorted() {
		for _, p := range t.Partitions {
			described := newGroupPartition(t.Topic, p, committed, o.starts, o.ends)
			described.MemberID = readers[t.Topic][p]
			g.Partitions = append(g.Partitions, described)
		}
	}
	if lag, unknown := g.knownLag(); unknown == 0 {
		g.TotalLag = &lag
	}
}

var errNotListed = errors.New("the broker has not told its offsets")

// newGroupPartition computes the lag of a partition, which is unknown if its committed offset or its end is. The start
// only matters where nothing has been committed.
func newGroupPartition(topic string, partition int32, committed kadm.OffsetResponses, starts, ends kadm.ListedOffsets) groupPartition {
	p := groupPartition{Topic: topic, Partition: partition}
	commit, ok := committed.Lookup(topic, partition)
	err := commit.Err
	if ok && commit.Err == nil && commit.At >= 0 {
		p.CommittedOffset = &commit.At
	}
	end, endErr := boundOf(ends, topic, partition)
	if endErr == nil {
		p.EndOffset = &end
	}
	err = cmp.Or(err, endErr)
	from := commit.At
	if p.CommittedOffset == nil {
		var startErr error
		from, startErr = boundOf(starts, topic, partition)
		err = cmp.Or(err, startErr)
	}
	if err != nil {
		p.Error = err.Error()
		return p
	}
	lag := max(end-from, 0)
	p.Lag = &lag
	return p
}

func boundOf(listed kadm.ListedOffsets, topic string, partition int32) (int64, error) {
	bound, ok := listed.Lookup(topic, partition)
	if !ok {
		if bound, ok = listed.Lookup(topic, -1); !ok || bound.Err == nil {
			bound.Err = errNotListed
		}
	}
	return bound.Offset, bound.Err
}

// knownLag adds up the lag of the partitions, but for the number of those whose lag is unknown.
func (d *groupDescription) knownLag() (lag int64, unknown int) {
	for _, p := range d.Partitions {
		if p.Lag == nil {
			unknown++
			continue
		}
		lag += *p.Lag
	}
	return lag, unknown
}

// noteErrors tells why the lag of partitions is unknown.
func (d *groupDescription) noteErrors(out output) {
	for _, p := range d.Partitions {
		if p.Error != "" {
			out.note("%s: lag of %s is unknown: %s", groupNamed(d.Name), place{topic: p.Topic, partition: p.Partition}.name(), p.Error)
		}
	}
}

func (d *groupDescription) tables() []*table {
	about := newTable()
	about.add("group", d.Name)
	about.add("state", d.State)
	about.add("type", d.Type)
	about.add("protocol", strings.TrimSpace(d.ProtocolType+" "+d.Protocol))
	if d.Epoch != nil {
		about.add("epoch", *d.Epoch)
	}
	about.add("coordinator", d.Coordinator)
	about.add("lag", d.lagText())
	tables := []*table{about}
	if len(d.Members) > 0 {
		members := newTable("MEMBER", "INSTANCE", "CLIENT", "HOST", "PARTITIONS")
		for _, m := range d.Members {
			n := 0
			for _, a := range m.Assigned {
				n += len(a.Partitions)
			}
			members.add(m.ID, textOrNone(m.InstanceID), m.ClientID, m.Host, n)
		}
		tables = append(tables, members)
	}
	if len(d.Partitions) > 0 {
		partitions := newTable("TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "MEMBER")
		for _, p := range d.Partitions {
			partitions.add(p.Topic, p.Partition, numberOrNone(p.CommittedOffset), numberOrNone(p.EndOffset), numberOr(p.Lag, "?"), textOrNone(p.MemberID))
		}
		tables = append(tables, partitions)
	}
	return tables
}

// lagText is the total lag, or what is known of it.
func (d *groupDescription) lagText() string {
	lag, unknown := d.knownLag()
	if unknown > 0 {
		return fmt.Sprintf("? (incomplete: %d without the partitions of unknown lag, %d of %d)", lag, unknown, len(d.Partitions))
	}
	return strconv.FormatInt(lag, 10)
}

func textOrNone(text *string) string {
	if text == nil {
		return ""
	}
	return *text
}

func numberOrNone(n *int64) string { return numberOr(n, "") }

func numberOr(n *int64, none string) string {
	if n == nil {
		return none
	}
	return strconv.FormatInt(*n, 10)
}
