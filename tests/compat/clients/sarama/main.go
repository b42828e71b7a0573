// Command sarama carries out the duties of the compatibility run with github.com/IBM/sarama.
package main

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"github.com/brookletmq/brooklet/tests/compat/internal/duty"
)

func main() {
	duty.Main(func(brokers string) duty.Client { return client{[]string{brokers}} })
}

type client struct{ brokers []string }

func (client) Version() string   { return duty.ModuleVersion("github.com/IBM/sarama") }
func (client) Lacks() duty.Lacks { return duty.Lacks{} }

func config() *sarama.Config {
	c := sarama.NewConfig()
	c.Producer.Partitioner = sarama.NewManualPartitioner
	c.Producer.RequiredAcks = sarama.WaitForAll
	c.Producer.Return.Successes = true
	c.Consumer.Offsets.Initial = sarama.OffsetOldest
	c.Consumer.Group.Heartbeat.Interval = 500 * time.Millisecond
	return c
}

var codecs = map[string]sarama.CompressionCodec{
	"none": sarama.CompressionNone, "gzip": sarama.CompressionGZIP, "snappy": sarama.CompressionSnappy,
	"lz4": sarama.CompressionLZ4, "zstd": sarama.CompressionZSTD,
}

func (c client) Produce(_ context.Context, topic string, o duty.ProduceOptions, records []duty.Record) error {
	conf := config()
	conf.Producer.Compression = codecs[o.Codec]
	if o.Idempotent {
		conf.Producer.Idempotent = true
		conf.Net.MaxOpenRequests = 1
	}
	producer, err := sarama.NewSyncProducer(c.brokers, conf)
	if err != nil {
		return err
	}
	sent := make([]*sarama.ProducerMessage, len(records))
	for i, r := range records {
		sent[i] = &sarama.ProducerMessage{Topic: topic, Partition: r.Partition, Value: sarama.ByteEncoder(r.Value), Timestamp: r.Time}
		if r.Key != nil {
			sent[i].Key = sarama.ByteEncoder(r.Key)
		}
		for _, h := range r.Headers {
			sent[i].Headers = append(sent[i].Headers, sarama.RecordHeader{Key: []byte(h.Key), Value: h.Value})
		}
	}
	return errors.Join(producer.SendMessages(sent), producer.Close())
}

func (c client) Consume(ctx context.Context, topic string, from time.Time, n int) ([]duty.Record, error) {
	cl, err := sarama.NewClient(c.brokers, config())
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	start := sarama.OffsetOldest
	if !from.IsZero() {
		if start, err = cl.GetOffset(topic, 0, from.UnixMilli()); err != nil {
			return nil, err
		}
	}
	consumer, err := sarama.NewConsumerFromClient(cl)
	if err != nil {
		return nil, err
	}
	partition, err := consumer.ConsumePartition(topic, 0, start)
	if err != nil {
		return nil, err
	}
	defer partition.Close()
	var records []duty.Record
	for len(records) < n {
		select {
		case m := <-partition.Messages():
			records = append(records, convert(m))
		case <-ctx.Done():
			return records, ctx.Err()
		}
	}
	return records, nil
}

func convert(m *sarama.ConsumerMessage) duty.Record {
	r := duty.Record{Partition: m.Partition, Key: m.Key, Value: m.Value, Time: m.Timestamp}
	for _, h := range m.Headers {
		r.Headers = append(r.Headers, duty.Header{Key: string(h.Key), Value: h.Value})
	}
	return r
}

// member is a group consumer; sarama calls its methods Setup, Cleanup and ConsumeClaim.
type member struct {
	group  sarama.ConsumerGroup
	topic  string
	limit  int // records after which it stops reading, 0 for none
	full   chan struct{}
	cancel context.CancelFunc
	done   chan struct{}

	mu         sync.Mutex
	partitions []int32
	records    []duty.Record
	err        error
}

func (c client) Join(_ context.Context, group, topic string) (duty.Member, error) {
	return c.join(group, topic, 0)
}

func (c client) join(group, topic string, limit int) (*member, error) {
	g, err := sarama.NewConsumerGroup(c.brokers, group, config())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	m := &member{group: g, topic: topic, limit: limit, full: make(chan struct{}), cancel: cancel, done: make(chan struct{})}
	go m.run(ctx)
	return m, nil
}

func (m *member) run(ctx context.Context) {
	defer close(m.done)
	for ctx.Err() == nil {
		if err := m.group.Consume(ctx, []string{m.topic}, m); err != nil {
			m.mu.Lock()
			m.err = err
			m.mu.Unlock()
			return
		}
	}
}

func (m *member) Setup(session sarama.ConsumerGroupSession) error {
	m.setPartitions(session.Claims()[m.topic])
	return nil
}

func (m *member) Cleanup(session sarama.ConsumerGroupSession) error {
	m.setPartitions(nil)
	session.Commit()
	return nil
}

func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, ok := <-claim.Messages():
			if !ok || !m.add(message) {
				return nil
			}
			session.MarkMessage(message, "")
		case <-session.Context().Done():
			return nil
		}
	}
}

// add takes a record, unless there are enough.
func (m *member) add(message *sarama.ConsumerMessage) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.limit > 0 && len(m.records) == m.limit {
		return false
	}
	m.records = append(m.records, convert(message))
	if len(m.records) == m.limit {
		close(m.full)
	}
	return true
}

func (m *member) setPartitions(partitions []int32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.partitions = slices.Sorted(slices.Values(partitions))
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
	return errors.Join(err, m.err)
}

func (c client) ReadAndCommit(ctx context.Context, group, topic string, n int) ([]duty.Record, error) {
	m, err := c.join(group, topic, n)
	if err != nil {
		return nil, err
	}
	select {
	case <-m.full:
	case <-m.done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	return m.Records(), errors.Join(err, m.Close(ctx))
}

type admin struct{ sarama.ClusterAdmin }

func (c client) Admin(context.Context) (duty.Admin, error) {
	a, err := sarama.NewClusterAdmin(c.brokers, config())
	return admin{a}, err
}

func (a admin) CreateTopic(_ context.Context, topic string, partitions int32, configs map[string]string) error {
	detail := &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: 1, ConfigEntries: map[string]*string{}}
	for name, value := range configs {
		detail.ConfigEntries[name] = &value
	}
	return a.ClusterAdmin.CreateTopic(topic, detail, false)
}

func (a admin) ListTopics(context.Context) ([]string, error) {
	all, err := a.ClusterAdmin.ListTopics()
	var names []string
	for name := range all {
		names = append(names, name)
	}
	return names, err
}

func (a admin) Partitions(_ context.Context, topic string) (int, error) {
	described, err := a.DescribeTopics([]string{topic})
	if err != nil {
		return 0, err
	}
	if described[0].Err != sarama.ErrNoError {
		return 0, described[0].Err
	}
	return len(described[0].Partitions), nil
}

func (a admin) DeleteTopic(_ context.Context, topic string) error {
	return a.ClusterAdmin.DeleteTopic(topic)
}

func (a admin) TopicConfig(_ context.Context, topic, name string) (string, error) {
	resource := &sarama.ConfigResource{Type: sarama.TopicResource, Name: topic, ConfigNames: []string{name}}
	described, err := a.DescribeConfigs([]*sarama.ConfigResource{resource}, sarama.DescribeConfigsOptions{IncludeSynonyms: true})
	if err != nil {
		return "", err
	}
	for _, entry := range described[0].Configs {
		if entry.Name == name {
			return entry.Value, nil
		}
	}
	return "", described[0].ErrorCode
}

func (a admin) SetTopicConfig(_ context.Context, topic, name, value string) error {
	return a.IncrementalAlterConfig(sarama.TopicResource, topic, map[string]sarama.IncrementalAlterConfigsEntry{
		name: {Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &value},
	}, false)
}

func (a admin) ListGroups(context.Context) ([]string, error) {
	all, err := a.ListConsumerGroups()
	var names []string
	for name := range all {
		names = append(names, name)
	}
	return names, err
}

func (a admin) DescribeGroup(_ context.Context, group string) (string, int, error) {
	described, err := a.DescribeConsumerGroups([]string{group})
	if err != nil {
		return "", 0, err
	}
	if described[0].Err != sarama.ErrNoError {
		return "", 0, described[0].Err
	}
	return described[0].State, len(described[0].Members), nil
}

func (a admin) DeleteGroup(_ context.Context, group string) error {
	return a.DeleteConsumerGroup(group)
}

func (a admin) Close() { _ = a.ClusterAdmin.Close() }
