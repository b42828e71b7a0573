// Command kafka-go carries out the duties of the compatibility run with github.com/segmentio/kafka-go.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/brookletmq/brooklet/tests/compat/internal/duty"
)

func main() {
	duty.Main(func(brokers string) duty.Client { return client{brokers} })
}

type client struct{ brokers string }

func (client) Version() string   { return duty.ModuleVersion("github.com/segmentio/kafka-go") }
func (client) Lacks() duty.Lacks { return duty.Lacks{} }

// transport returns one that knows topic. By default it learns topics from the list of all, where named streams are not,
// and its writer would wait for ever to see a stream there.
func transport(topic string) *kafka.Transport {
	return &kafka.Transport{MetadataTopics: []string{topic}}
}

var codecs = map[string]kafka.Compression{
	"none": 0, "gzip": kafka.Gzip, "snappy": kafka.Snappy, "lz4": kafka.Lz4, "zstd": kafka.Zstd,
}

func (c client) Produce(ctx context.Context, topic string, o duty.ProduceOptions, records []duty.Record) error {
	if o.Idempotent {
		return duty.NotApplicable("it has no idempotent producer")
	}
	t := transport(topic)
	defer t.CloseIdleConnections()
	w := &kafka.Writer{
		Addr: kafka.TCP(c.brokers), Topic: topic, Transport: t, RequiredAcks: kafka.RequireAll,
		Compression: codecs[o.Codec], AllowAutoTopicCreation: true, BatchSize: len(records), BatchTimeout: 10 * time.Millisecond,
		Balancer: kafka.BalancerFunc(func(m kafka.Message, _ ...int) int { return int(m.WriterData.(int32)) }),
	}
	sent := make([]kafka.Message, len(records))
	for i, r := range records {
		sent[i] = kafka.Message{WriterData: r.Partition, Key: r.Key, Value: r.Value, Time: r.Time}
		for _, h := range r.Headers {
			sent[i].Headers = append(sent[i].Headers, kafka.Header(h))
		}
	}
	return errors.Join(w.WriteMessages(ctx, sent...), w.Close())
}

func (c client) Consume(ctx context.Context, topic string, from time.Time, n int) (records []duty.Record, err error) {
	r := kafka.NewReader(kafka.ReaderConfig{Brokers: []string{c.brokers}, Topic: topic, MaxWait: 100 * time.Millisecond})
	defer r.Close()
	if from.IsZero() {
		err = r.SetOffset(kafka.FirstOffset)
	} else {
		err = r.SetOffsetAt(ctx, from)
	}
	for err == nil && len(records) < n {
		var m kafka.Message
		if m, err = r.ReadMessage(ctx); err == nil {
			records = append(records, convert(m))
		}
	}
	return records, err
}

func convert(m kafka.Message) duty.Record {
	r := duty.Record{Partition: int32(m.Partition), Key: m.Key, Value: m.Value, Time: m.Time}
	for _, h := range m.Headers {
		r.Headers = append(r.Headers, duty.Header(h))
	}
	return r
}

func (c client) reader(group, topic string) *kafka.Reader {
	return kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{c.brokers}, GroupID: group, Topic: topic, StartOffset: kafka.FirstOffset,
		MaxWait: 100 * time.Millisecond, HeartbeatInterval: 500 * time.Millisecond,
	})
}

func (c client) ReadAndCommit(ctx context.Context, group, topic string, n int) (records []duty.Record, err error) {
	r := c.reader(group, topic)
	defer func() { err = cmp.Or(err, r.Close()) }()
	for len(records) < n {
		m, err := r.FetchMessage(ctx)
		if err != nil {
			return records, err
		}
		records = append(records, convert(m))
		if len(records) == n {
			return records, r.CommitMessages(ctx, m)
		}
	}
	return records, nil
}

// member reads with the lower layer of the library, for kafka.Reader does not tell which partitions it has.
type member struct {
	client client
	topic  string
	group  *kafka.ConsumerGroup
	cancel context.CancelFunc
	done   chan struct{}

	mu         sync.Mutex
	partitions []int32
	records    []duty.Record
}

func (c client) Join(_ context.Context, group, topic string) (duty.Member, error) {
	g, err := kafka.NewConsumerGroup(kafka.ConsumerGroupConfig{
		ID: group, Brokers: []string{c.brokers}, Topics: []string{topic}, StartOffset: kafka.FirstOffset,
		HeartbeatInterval: 500 * time.Millisecond,
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	m := &member{client: c, topic: topic, group: g, cancel: cancel, done: make(chan struct{})}
	go m.run(ctx)
	return m, nil
}

func (m *member) run(ctx context.Context) {
	defer close(m.done)
	for ctx.Err() == nil {
		generation, err := m.group.Next(ctx)
		if err != nil {
			continue // it is in the log of the library, and the duty runs into its time limit
		}
		m.setPartitions(generation.Assignments[m.topic])
		for _, assignment := range generation.Assignments[m.topic] {
			generation.Start(func(ctx context.Context) { m.read(ctx, generation, assignment) })
		}
	}
}

// read reads a partition as long as the generation lasts.
func (m *member) read(ctx context.Context, generation *kafka.Generation, assignment kafka.PartitionAssignment) {
	r := kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{m.client.brokers}, Topic: m.topic, Partition: assignment.ID, MaxWait: 100 * time.Millisecond,
	})
	defer r.Close()
	if r.SetOffset(assignment.Offset) != nil {
		return
	}
	for {
		message, err := r.ReadMessage(ctx)
		if err != nil {
			return
		}
		m.mu.Lock()
		m.records = append(m.records, convert(message))
		m.mu.Unlock()
		// A failure shows as a record that is read twice.
		_ = generation.CommitOffsets(map[string]map[int]int64{m.topic: {assignment.ID: message.Offset + 1}})
	}
}

func (m *member) setPartitions(assignments []kafka.PartitionAssignment) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.partitions = nil
	for _, a := range assignments {
		m.partitions = append(m.partitions, int32(a.ID))
	}
	slices.Sort(m.partitions)
}

func (m *member) Partitions() []int32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.partitions)
}

func (m *member) Records() []duty.Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.records)
}

func (m *member) Close(context.Context) error {
	m.cancel()
	err := m.group.Close()
	<-m.done
	return err
}

type admin struct{ *kafka.Client }

func (c client) Admin(context.Context) (duty.Admin, error) {
	return admin{&kafka.Client{Addr: kafka.TCP(c.brokers)}}, nil
}

func (a admin) CreateTopic(ctx context.Context, topic string, partitions int32, configs map[string]string) error {
	config := kafka.TopicConfig{Topic: topic, NumPartitions: int(partitions), ReplicationFactor: 1}
	for name, value := range configs {
		config.ConfigEntries = append(config.ConfigEntries, kafka.ConfigEntry{ConfigName: name, ConfigValue: value})
	}
	response, err := a.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{config}})
	if err != nil {
		return err
	}
	return response.Errors[topic]
}

// metadata asks over a connection, since kafka.Client answers from a cache.
func (a admin) metadata(ctx context.Context, topics ...string) (partitions []kafka.Partition, err error) {
	conn, err := kafka.DialContext(ctx, "tcp", a.Addr.String())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	return conn.ReadPartitions(topics...)
}

func (a admin) ListTopics(ctx context.Context) ([]string, error) {
	partitions, err := a.metadata(ctx)
	var names []string
	for _, p := range partitions {
		names = append(names, p.Topic)
	}
	return names, err
}

func (a admin) Partitions(ctx context.Context, topic string) (int, error) {
	partitions, err := a.metadata(ctx, topic)
	return len(partitions), err
}

func (a admin) DeleteTopic(ctx context.Context, topic string) error {
	response, err := a.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{topic}})
	if err != nil {
		return err
	}
	return response.Errors[topic]
}

func (a admin) TopicConfig(ctx context.Context, topic, name string) (string, error) {
	response, err := a.DescribeConfigs(ctx, &kafka.DescribeConfigsRequest{Resources: []kafka.DescribeConfigRequestResource{
		{ResourceType: kafka.ResourceTypeTopic, ResourceName: topic, ConfigNames: []string{name}},
	}})
	if err != nil {
		return "", err
	}
	for _, resource := range response.Resources {
		for _, entry := range resource.ConfigEntries {
			if entry.ConfigName == name {
				return entry.ConfigValue, resource.Error
			}
		}
	}
	return "", fmt.Errorf("the response does not have %s", name)
}

func (a admin) SetTopicConfig(ctx context.Context, topic, name, value string) error {
	response, err := a.IncrementalAlterConfigs(ctx, &kafka.IncrementalAlterConfigsRequest{
		Resources: []kafka.IncrementalAlterConfigsRequestResource{{
			ResourceType: kafka.ResourceTypeTopic, ResourceName: topic,
			Configs: []kafka.IncrementalAlterConfigsRequestConfig{{Name: name, Value: value, ConfigOperation: kafka.ConfigOperationSet}},
		}},
	})
	if err != nil {
		return err
	}
	return response.Resources[0].Error
}

func (a admin) ListGroups(ctx context.Context) ([]string, error) {
	response, err := a.Client.ListGroups(ctx, &kafka.ListGroupsRequest{})
	if err != nil {
		return nil, err
	}
	var names []string
	for _, g := range response.Groups {
		names = append(names, g.GroupID)
	}
	return names, response.Error
}

func (a admin) DescribeGroup(ctx context.Context, group string) (string, int, error) {
	response, err := a.DescribeGroups(ctx, &kafka.DescribeGroupsRequest{GroupIDs: []string{group}})
	if err != nil {
		return "", 0, err
	}
	g := response.Groups[0]
	return g.GroupState, len(g.Members), g.Error
}

func (a admin) DeleteGroup(ctx context.Context, group string) error {
	response, err := a.DeleteGroups(ctx, &kafka.DeleteGroupsRequest{GroupIDs: []string{group}})
	if err != nil {
		return err
	}
	return response.Errors[group]
}

func (admin) Close() {}
