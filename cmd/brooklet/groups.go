package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/urfave/cli/v2"
)

func groupsCommand() *cli.Command {
	return commandGroup(cli.Command{
		Name:  "groups",
		Usage: "list and describe consumer groups, move their offsets, delete them",
		Subcommands: []*cli.Command{
			listGroupsCommand(), describeGroupsCommand(), resetOffsetsCommand(), deleteGroupsCommand(), deleteOffsetsCommand(),
		},
	})
}

// groupListing is a group in JSON output.
type groupListing struct {
	Name         string `json:"name"`
	State        string `json:"state"`
	Type         string `json:"type"`          // classic or consumer
	ProtocolType string `json:"protocol_type"` // consumer, connect, ...; empty for groups that only keep offsets
}

func listGroupsCommand() *cli.Command {
	return clientCommand(cli.Command{
		Name:        "list",
		Usage:       "list all groups",
		Description: "Examples:\n   brooklet groups list\n   brooklet groups list --state Stable --state Empty",
		Flags: []cli.Flag{
			&cli.StringSliceFlag{Name: "state", Usage: "only groups in this `STATE`: Empty, Stable, PreparingRebalance, CompletingRebalance or Dead; may be given many times"},
		},
	}, nil, listGroups)
}

func listGroups(s *session) error {
	groups, err := s.admin.ListGroups(s.ctx, s.StringSlice("state")...)
	if err != nil {
		return err
	}
	listings := []groupListing{}
	shown := newTable("GROUP", "STATE", "TYPE", "PROTOCOL")
	for _, g := range groups.Sorted() {
		listings = append(listings, groupListing{g.Group, g.State, g.GroupType, g.ProtocolType})
		shown.add(g.Group, g.State, g.GroupType, g.ProtocolType)
	}
	return s.out.print(listings, shown)
}

// groupDescription is a group in JSON output.
type groupDescription struct {
	Name         string              `json:"name"`
	State        string              `json:"state"`
	ProtocolType string              `json:"protocol_type"`
	Protocol     string              `json:"protocol"` // how partitions are assigned
	Coordinator  int32               `json:"coordinator"`
	TotalLag     int64               `json:"total_lag"`
	Members      []memberDescription `json:"members"`
	Partitions   []groupPartition    `json:"partitions"`
}

type memberDescription struct {
	ID         string             `json:"id"`
	InstanceID *string            `json:"instance_id"`
	ClientID   string             `json:"client_id"`
	Host       string             `json:"host"`
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
	lags, err := s.admin.Lag(s.ctx, s.Args().Slice()...)
	if err != nil {
		return err
	}
	descriptions := []groupDescription{}
	var tables []*table
	var errs []error
	for _, l := range lags.Sorted() {
		if err := errors.Join(l.DescribeErr, l.FetchErr); err != nil {
			errs = append(errs, brokerError(groupNamed(l.Group), err, ""))
			continue
		}
		if l.State == groupDead && len(l.Lag) == 0 { // how old brokers describe groups that do not exist
			errs = append(errs, brokerError(groupNamed(l.Group), kerr.GroupIDNotFound, ""))
			continue
		}
		d := newGroupDescription(&l)
		descriptions = append(descriptions, d)
		tables = append(tables, d.tables()...)
	}
	return joinErrors(s.out.print(descriptions, tables...), errors.Join(errs...))
}

func groupNamed(name string) string { return fmt.Sprintf("group %q", name) }

// States of groups that matter here.
const (
	groupEmpty = "Empty"
	groupDead  = "Dead"
)

func newGroupDescription(l *kadm.DescribedGroupLag) groupDescription {
	d := groupDescription{
		Name: l.Group, State: l.State, ProtocolType: l.ProtocolType, Protocol: l.Protocol, Coordinator: l.Coordinator.NodeID,
		Members: []memberDescription{}, Partitions: []groupPartition{},
	}
	for _, m := range l.Members {
		member := memberDescription{ID: m.MemberID, InstanceID: m.InstanceID, ClientID: m.ClientID, Host: strings.TrimPrefix(m.ClientHost, "/"), Assigned: []memberAssignment{}}
		if assigned, ok := m.Assigned.AsConsumer(); ok {
			for _, t := range assigned.Topics {
				member.Assigned = append(member.Assigned, memberAssignment{t.Topic, slices.Sorted(slices.Values(t.Partitions))})
			}
		}
		d.Members = append(d.Members, member)
	}
	for _, p := range l.Lag.Sorted() {
		d.Partitions = append(d.Partitions, newGroupPartition(&p))
		d.TotalLag += max(p.Lag, 0)
	}
	return d
}

func newGroupPartition(l *kadm.GroupMemberLag) groupPartition {
	p := groupPartition{Topic: l.Topic, Partition: l.Partition}
	if l.Commit.At >= 0 {
		p.CommittedOffset = &l.Commit.At
	}
	if l.End.Err == nil {
		p.EndOffset = &l.End.Offset
	}
	if l.Lag >= 0 {
		p.Lag = &l.Lag
	}
	if l.Member != nil {
		p.MemberID = &l.Member.MemberID
	}
	if l.Err != nil {
		p.Error = l.Err.Error()
	}
	return p
}

func (d *groupDescription) tables() []*table {
	about := newTable()
	about.add("group", d.Name)
	about.add("state", d.State)
	about.add("protocol", strings.TrimSpace(d.ProtocolType+" "+d.Protocol))
	about.add("coordinator", d.Coordinator)
	about.add("lag", d.TotalLag)
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
			partitions.add(p.Topic, p.Partition, numberOrNone(p.CommittedOffset), numberOrNone(p.EndOffset), numberOrNone(p.Lag), textOrNone(p.MemberID))
		}
		tables = append(tables, partitions)
	}
	return tables
}

func textOrNone(text *string) string {
	if text == nil {
		return ""
	}
	return *text
}

func numberOrNone(n *int64) string {
	if n == nil {
		return ""
	}
	return strconv.FormatInt(*n, 10)
}

// deletedGroup is a group in JSON output.
type deletedGroup struct {
	Name  string `json:"name"`
	Error string `json:"error,omitempty"`
}

func deleteGroupsCommand() *cli.Command {
	return clientCommand(cli.Command{
		Name:        "delete",
		Usage:       "delete groups without members, with their offsets",
		ArgsUsage:   "GROUP...",
		Description: "Example:\n   brooklet groups delete billing",
	}, needArguments("one or more groups"), deleteGroups)
}

func deleteGroups(s *session) error {
	results, err := s.admin.DeleteGroups(s.ctx, s.Args().Slice()...)
	if err != nil {
		return err
	}
	deleted := []deletedGroup{}
	var errs []error
	for _, r := range results.Sorted() {
		d := deletedGroup{Name: r.Group}
		if err := brokerError(groupNamed(r.Group), r.Err, r.ErrMessage); err != nil {
			d.Error = err.Error()
			errs = append(errs, err)
		} else {
			s.out.note("%s deleted", groupNamed(r.Group))
		}
		deleted = append(deleted, d)
	}
	return joinErrors(s.out.print(deleted), errors.Join(errs...))
}
