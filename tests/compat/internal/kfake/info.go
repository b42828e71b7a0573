package kfake

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// uuid is the id of a topic.
type uuid = [16]byte

// TopicInfo describes a topic.
type TopicInfo struct {
	Topic       string
	TopicID     uuid
	NumReplicas int
	// Configs are those that differ from the defaults.
	Configs map[string]*string
}

// PartitionInfo describes a partition.
type PartitionInfo struct {
	Partition                                       int32
	HighWatermark, LastStableOffset, LogStartOffset int64
	Epoch, Leader                                   int32
}

// GroupInfo describes a group.
type GroupInfo struct {
	Group string
	State string
	// Epoch is that of a consumer group.
	Epoch   int32
	Members []GroupMember
	Commits map[string]map[int32]GroupCommit
}

// GroupCommit is a committed offset.
type GroupCommit struct {
	Offset      int64
	LeaderEpoch int32
	Metadata    string
}

// GroupMember is a member of a group.
type GroupMember struct {
	MemberID, ClientID, ClientHost string
	InstanceID                     *string
	SubscribedTopics               []string
	Assignment                     map[string][]int32
}

// NumAssigned counts the partitions of a member.
func (m *GroupMember) NumAssigned() int {
	n := 0
	for _, partitions := range m.Assignment {
		n += len(partitions)
	}
	return n
}

// NumAssigned counts the partitions of all members.
func (g *GroupInfo) NumAssigned() int {
	n := 0
	for i := range g.Members {
		n += g.Members[i].NumAssigned()
	}
	return n
}

// CreateTopic creates a topic.
func (c *Cluster) CreateTopic(topic string, partitions int32, configs map[string]string) error {
	ctx, cancel := c.context()
	defer cancel()
	set := make(map[string]*string, len(configs))
	for name, value := range configs {
		set[name] = &value
	}
	if partitions <= 0 {
		partitions = -1
	}
	_, err := c.admin.CreateTopic(ctx, partitions, -1, set, topic)
	return err
}

// DeleteTopic deletes a topic.
func (c *Cluster) DeleteTopic(topic string) error {
	ctx, cancel := c.context()
	defer cancel()
	_, err := c.admin.DeleteTopic(ctx, topic)
	return err
}

// DeleteRecords removes the records below an offset, or all for -1.
func (c *Cluster) DeleteRecords(topic string, partition int32, offset int64) error {
	ctx, cancel := c.context()
	defer cancel()
	var offsets kadm.Offsets
	offsets.AddOffset(topic, partition, offset, -1)
	deleted, err := c.admin.DeleteRecords(ctx, offsets)
	if err == nil {
		err = deleted.Error()
	}
	return err
}

// topic asks for the metadata of a topic, past those that the client keeps. It returns nil if there is none.
func (c *Cluster) topic(ctx context.Context, name string) *kmsg.MetadataResponseTopic {
	request := kmsg.NewPtrMetadataRequest()
	topic := kmsg.NewMetadataRequestTopic()
	topic.Topic = kmsg.StringPtr(name)
	request.Topics = append(request.Topics, topic)
	reply, err := request.RequestWith(ctx, c.client)
	if err != nil || len(reply.Topics) != 1 || reply.Topics[0].ErrorCode != 0 {
		return nil
	}
	return &reply.Topics[0]
}

// TopicInfo describes a topic, nil if there is none.
func (c *Cluster) TopicInfo(topic string) *TopicInfo {
	ctx, cancel := c.context()
	defer cancel()
	t := c.topic(ctx, topic)
	if t == nil {
		return nil
	}
	info := &TopicInfo{Topic: topic, TopicID: t.TopicID, NumReplicas: len(t.Partitions[0].Replicas), Configs: make(map[string]*string)}
	described, err := c.admin.DescribeTopicConfigs(ctx, topic)
	if err != nil {
		return nil
	}
	for _, d := range described {
		for _, config := range d.Configs {
			if config.Source == kmsg.ConfigSourceDynamicTopicConfig {
				info.Configs[config.Key] = config.Value
			}
		}
	}
	return info
}

// PartitionInfo describes a partition, nil if there is none.
func (c *Cluster) PartitionInfo(topic string, partition int32) *PartitionInfo {
	ctx, cancel := c.context()
	defer cancel()
	t := c.topic(ctx, topic)
	if t == nil {
		return nil
	}
	i := slices.IndexFunc(t.Partitions, func(p kmsg.MetadataResponseTopicPartition) bool { return p.Partition == partition })
	if i < 0 {
		return nil
	}
	p := &t.Partitions[i]
	info := &PartitionInfo{Partition: partition, Epoch: p.LeaderEpoch, Leader: p.Leader}
	for _, bound := range []struct {
		list func(context.Context, ...string) (kadm.ListedOffsets, error)
		to   *int64
	}{
		{c.admin.ListStartOffsets, &info.LogStartOffset},
		{c.admin.ListCommittedOffsets, &info.LastStableOffset},
		{c.admin.ListEndOffsets, &info.HighWatermark},
	} {
		listed, err := bound.list(ctx, topic)
		if err != nil {
			return nil
		}
		offset, ok := listed.Lookup(topic, partition)
		if !ok || offset.Err != nil {
			return nil
		}
		*bound.to = offset.Offset
	}
	return info
}

// GroupInfo describes a group of either protocol, nil if there is none.
func (c *Cluster) GroupInfo(group string) *GroupInfo {
	ctx, cancel := c.context()
	defer cancel()
	info := c.consumerGroup(ctx, group)
	if info == nil {
		info = c.classicGroup(ctx, group)
	}
	if info == nil {
		return nil
	}
	info.Commits = make(map[string]map[int32]GroupCommit)
	offsets, err := c.admin.FetchOffsets(ctx, group)
	if err != nil {
		return nil
	}
	for topic, partitions := range offsets {
		info.Commits[topic] = make(map[int32]GroupCommit, len(partitions))
		for p, o := range partitions {
			info.Commits[topic][p] = GroupCommit{Offset: o.At, LeaderEpoch: o.LeaderEpoch, Metadata: o.Metadata}
		}
	}
	return info
}

func (c *Cluster) consumerGroup(ctx context.Context, group string) *GroupInfo {
	described, err := c.admin.DescribeConsumerGroups(ctx, group)
	d := described[group]
	if err != nil || d.Err != nil || d.State == "" || d.State == "Dead" {
		return nil
	}
	info := &GroupInfo{Group: group, State: d.State, Epoch: d.Epoch}
	for _, m := range d.Members {
		info.Members = append(info.Members, GroupMember{
			MemberID: m.MemberID, InstanceID: m.InstanceID, ClientID: m.ClientID, ClientHost: m.ClientHost,
			SubscribedTopics: m.SubscribedTopics, Assignment: lists(m.Assignment),
		})
	}
	return info
}

func (c *Cluster) classicGroup(ctx context.Context, group string) *GroupInfo {
	described, err := c.admin.DescribeGroups(ctx, group)
	d := described[group]
	if err != nil || d.Err != nil || d.State == "" || d.State == "Dead" {
		return nil
	}
	info := &GroupInfo{Group: group, State: d.State}
	for _, m := range d.Members {
		member := GroupMember{MemberID: m.MemberID, InstanceID: m.InstanceID, ClientID: m.ClientID, ClientHost: m.ClientHost, Assignment: make(map[string][]int32)}
		if joined, ok := m.Join.AsConsumer(); ok {
			member.SubscribedTopics = joined.Topics
		}
		if assigned, ok := m.Assigned.AsConsumer(); ok {
			for _, t := range assigned.Topics {
				member.Assignment[t.Topic] = t.Partitions
			}
		}
		info.Members = append(info.Members, member)
	}
	return info
}

func lists(s kadm.TopicsSet) map[string][]int32 {
	all := make(map[string][]int32, len(s))
	for topic, partitions := range s {
		all[topic] = slices.Sorted(maps.Keys(partitions))
	}
	return all
}

// WaitGroupStable waits for a group to be stable with so many members, or with any for a negative number.
func (c *Cluster) WaitGroupStable(ctx context.Context, group string, members int) (*GroupInfo, error) {
	return c.WaitGroupInfo(ctx, group, func(g *GroupInfo) bool {
		return g != nil && g.State == "Stable" && (members < 0 || len(g.Members) == members)
	})
}

// WaitGroupInfo asks for a group, nil while there is none, until fn is satisfied.
func (c *Cluster) WaitGroupInfo(ctx context.Context, group string, fn func(*GroupInfo) bool) (*GroupInfo, error) {
	for {
		g := c.GroupInfo(group)
		if fn(g) {
			return g, nil
		}
		select {
		case <-ctx.Done():
			return g, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}
