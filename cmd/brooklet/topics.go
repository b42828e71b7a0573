package main

import (
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/urfave/cli/v2"

	"github.com/brookletmq/brooklet/kafkaproto/ext"
)

func topicsCommand() *cli.Command {
	return commandGroup(cli.Command{
		Name:  "topics",
		Usage: "list, describe, create, alter, delete and trim topics and named streams",
		Description: "A name with a slash, such as sessions/alice, is a named stream: every command but list takes it like the name of\n" +
			"a topic with one partition.",
		Subcommands: []*cli.Command{
			listTopicsCommand(), describeTopicsCommand(), createTopicsCommand(), alterTopicsCommand(), deleteTopicsCommand(), trimTopicCommand(),
		},
	})
}

// topicListing is a topic in JSON output.
type topicListing struct {
	Name       string `json:"name"`
	ID         string `json:"id"` // as Kafka prints it
	Internal   bool   `json:"internal"`
	Partitions int    `json:"partitions"`
}

func listTopicsCommand() *cli.Command {
	return clientCommand(cli.Command{
		Name:        "list",
		Usage:       "list all topics; named streams are not listed, there may be millions",
		Description: "Examples:\n   brooklet topics list\n   brooklet topics list --output json",
	}, nil, listTopics)
}

func listTopics(s *session) error {
	topics, err := s.admin.ListTopicsWithInternal(s.ctx)
	if err != nil {
		return err
	}
	listings := []topicListing{}
	shown := newTable("TOPIC", "PARTITIONS", "ID")
	var errs []error
	for _, t := range topics.Sorted() {
		if t.Err != nil {
			errs = append(errs, brokerError(topicNamed(t.Topic), t.Err, ""))
			continue
		}
		l := topicListing{t.Topic, topicID(t.ID), t.IsInternal, len(t.Partitions)}
		listings = append(listings, l)
		shown.add(l.Name, l.Partitions, l.ID)
	}
	return joinErrors(s.out.print(listings, shown), errors.Join(errs...))
}

// topicNamed is how errors name a topic or stream.
func topicNamed(name string) string {
	if ext.IsStream(name) {
		return fmt.Sprintf("stream %q", name)
	}
	return fmt.Sprintf("topic %q", name)
}

// topicID is an id as Kafka's tools print it.
func topicID(id kadm.TopicID) string { return base64.RawURLEncoding.EncodeToString(id[:]) }

// topicDescription is a topic in JSON output.
type topicDescription struct {
	Name       string                 `json:"name"`
	ID         string                 `json:"id"`
	Internal   bool                   `json:"internal"`
	Configs    map[string]string      `json:"configs"` // those that were set on the topic
	Partitions []partitionDescription `json:"partitions"`
}

type partitionDescription struct {
	Partition   int32 `json:"partition"`
	Leader      int32 `json:"leader"`
	StartOffset int64 `json:"start_offset"`
	EndOffset   int64 `json:"end_offset"`
	Bytes       int64 `json:"bytes"` // stored
}

func describeTopicsCommand() *cli.Command {
	return clientCommand(cli.Command{
		Name:        "describe",
		Usage:       "show partitions, offsets, sizes and configs",
		ArgsUsage:   "NAME...",
		Description: "Examples:\n   brooklet topics describe orders\n   brooklet topics describe sessions/alice --output json",
	}, needArguments("one or more topics or streams"), describeTopics)
}

func describeTopics(s *session) error {
	details, err := s.admin.ListTopicsWithInternal(s.ctx, s.Args().Slice()...)
	if err != nil {
		return err
	}
	var names []string
	var errs []error
	for _, t := range details.Sorted() {
		if t.Err == nil && t.ID == (kadm.TopicID{}) { // a stream that was not written to yet
			t.Err = kerr.UnknownTopicOrPartition
		}
		if t.Err != nil {
			errs = append(errs, brokerError(topicNamed(t.Topic), t.Err, ""))
			continue
		}
		names = append(names, t.Topic)
	}
	descriptions := []topicDescription{}
	if len(names) > 0 { // without names, kadm would ask for all topics
		if descriptions, err = s.describeFound(details, names); err != nil {
			return err
		}
	}
	var tables []*table
	for i := range descriptions {
		tables = append(tables, descriptions[i].tables()...)
	}
	return joinErrors(s.out.print(descriptions, tables...), errors.Join(errs...))
}

func (s *session) describeFound(details kadm.TopicDetails, names []string) ([]topicDescription, error) {
	starts, err := s.admin.ListStartOffsets(s.ctx, names...)
	if err != nil {
		return nil, err
	}
	ends, err := s.admin.ListEndOffsets(s.ctx, names...)
	if err != nil {
		return nil, err
	}
	configs, err := s.admin.DescribeTopicConfigs(s.ctx, names...)
	if err != nil {
		return nil, err
	}
	partitions := details.TopicsSet()
	for name := range partitions {
		if details[name].Err != nil {
			delete(partitions, name)
		}
	}
	sizes, err := s.admin.DescribeAllLogDirs(s.ctx, partitions)
	if err != nil {
		return nil, err
	}
	descriptions := make([]topicDescription, len(names))
	for i, name := range names {
		d := details[name]
		descriptions[i] = topicDescription{Name: name, ID: topicID(d.ID), Internal: d.IsInternal, Configs: map[string]string{}}
		for _, p := range d.Partitions.Sorted() {
			start, _ := starts.Lookup(name, p.Partition)
			end, _ := ends.Lookup(name, p.Partition)
			if err := joinErrors(start.Err, end.Err); err != nil {
				return nil, brokerError(fmt.Sprintf("partition %d of %s", p.Partition, topicNamed(name)), err, "")
			}
			size, _ := sizes[p.Leader].LookupPartition(name, p.Partition)
			descriptions[i].Partitions = append(descriptions[i].Partitions, partitionDescription{p.Partition, p.Leader, start.Offset, end.Offset, size.Size})
		}
	}
	for _, r := range configs {
		if r.Err != nil {
			return nil, brokerError("configs of "+topicNamed(r.Name), r.Err, r.ErrMessage)
		}
		for _, c := range r.Configs {
			if c.Source == kmsg.ConfigSourceDynamicTopicConfig {
				descriptions[slices.Index(names, r.Name)].Configs[c.Key] = configValue(c)
			}
		}
	}
	return descriptions, nil
}

func (d *topicDescription) tables() []*table {
	var set []string
	for name, value := range d.Configs {
		set = append(set, name+"="+value)
	}
	slices.Sort(set)
	about := newTable()
	about.add("topic", d.Name)
	about.add("id", d.ID)
	about.add("configs", strings.Join(set, " "))
	partitions := newTable("PARTITION", "LEADER", "START", "END", "RECORDS", "BYTES")
	for _, p := range d.Partitions {
		partitions.add(p.Partition, p.Leader, p.StartOffset, p.EndOffset, p.EndOffset-p.StartOffset, p.Bytes)
	}
	return []*table{about, partitions}
}
