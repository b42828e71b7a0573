// Command franz-go carries out the duties of the compatibility run with github.com/twmb/franz-go.
package main

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/brookletmq/brooklet/tests/compat/internal/duty"
)

func main() {
	duty.Main(func(brokers string) duty.Client { return client{brokers} })
}

type client struct{ brokers string }

func (client) Version() string   { return duty.ModuleVersion("github.com/twmb/franz-go") }
func (client) Lacks() duty.Lacks { return duty.Lacks{} }

func (c client) open(options ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append(options, kgo.SeedBrokers(c.brokers), kgo.AllowAutoTopicCreation(), kgo.MetadataMinAge(10*time.Millisecond))...)
}

func (c client) Produce(ctx context.Context, topic string, o duty.ProduceOptions, records []duty.Record) error {
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	options := []kgo.Opt{kgo.ProducerBatchCompression(codecs[o.Codec]), kgo.RecordPartitioner(kgo.ManualPartitioner())}
	if !o.Idempotent {
		options = append(options, kgo.DisableIdempotentWrite())
	}
	cl, err := c.open(options...)
	if err != nil {
		return err
	}
	defer cl.Close()
	sent := make([]*kgo.Record, len(records))
	for i, r := range records {
		sent[i] = &kgo.Record{Topic: topic, Partition: r.Partition, Key: r.Key, Value: r.Value, Timestamp: r.Time}
		for _, h := range r.Headers {
			sent[i].Headers = append(sent[i].Headers, kgo.RecordHeader(h))
		}
	}
	return cl.ProduceSync(ctx, sent...).FirstErr()
}

func (c client) Consume(ctx context.Context, topic string, from time.Time, n int) ([]duty.Record, error) {
	start := kgo.NewOffset().AtStart()
	if !from.IsZero() {
		start = kgo.NewOffset().AfterMilli(from.UnixMilli())
	}
	cl, err := c.open(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: start}}))
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	var records []duty.Record
	for len(records) < n {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return records, err
		}
		fetches.EachRecord(func(r *kgo.Record) { records = append(records, convert(r)) })
	}
	return records, nil
}

func convert(r *kgo.Record) duty.Record {
	d := duty.Record{Partition: r.Partition, Key: r.Key, Value: r.Value, Time: r.Timestamp}
	for _, h := range r.Headers {
		d.Headers = append(d.Headers, duty.Header(h))
	}
	return d
}

func (c client) ReadAndCommit(ctx context.Context, group, topic string, n int) ([]duty.Record, error) {
	cl, err := c.open(kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	var records []duty.Record
	for len(records) < n {
		fetches := cl.PollRecords(ctx, n-len(records))
		if err := fetches.Err(); err != nil {
			return records, err
		}
		fetches.EachRecord(func(r *kgo.Record) { records = append(records, convert(r)) })
	}
	if err := cl.CommitUncommittedOffsets(ctx); err != nil {
		return records, err
	}
	return records, cl.LeaveGroupContext(ctx)
}

// member is a group consumer that polls on a goroutine of its own.
type member struct {
	client *kgo.Client
	done   chan struct{}

	mu         sync.Mutex
	partitions []int32
	records    []duty.Record
}

func (c client) Join(_ context.Context, group, topic string) (duty.Member, error) {
	m := &member{done: make(chan struct{})}
	var err error
	m.client, err = c.open(
		kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.HeartbeatInterval(500*time.Millisecond),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, assigned map[string][]int32) {
			m.setPartitions(assigned[topic], nil)
		}),
		kgo.OnPartitionsRevoked(func(ctx context.Context, cl *kgo.Client, revoked map[string][]int32) {
			_ = cl.CommitUncommittedOffsets(ctx) // a failure shows as records that are read twice
			m.setPartitions(nil, revoked[topic])
		}),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, lost map[string][]int32) {
			m.setPartitions(nil, lost[topic])
		}),
	)
	if err != nil {
		return nil, err
	}
	go m.poll()
	return m, nil
}

func (m *member) poll() {
	defer close(m.done)
	for {
		fetches := m.client.PollFetches(context.Background())
		if fetches.IsClientClosed() {
			return
		}
		m.mu.Lock()
		fetches.EachRecord(func(r *kgo.Record) { m.records = append(m.records, convert(r)) })
		m.mu.Unlock()
	}
}

func (m *member) setPartitions(assigned, revoked []int32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.partitions = slices.DeleteFunc(append(m.partitions, assigned...), func(p int32) bool { return slices.Contains(revoked, p) })
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

func (m *member) Close(ctx context.Context) error {
	err := cmp.Or(m.client.CommitUncommittedOffsets(ctx), m.client.LeaveGroupContext(ctx))
	m.client.Close()
	<-m.done
	return err
}

type admin struct{ *kadm.Client }

func (c client) Admin(context.Context) (duty.Admin, error) {
	cl, err := c.open()
	if err != nil {
		return nil, err
	}
	return admin{kadm.NewClient(cl)}, nil
}

func (a admin) CreateTopic(ctx context.Context, topic string, partitions int32, configs map[string]string) error {
	values := make(map[string]*string, len(configs))
	for name, value := range configs {
		values[name] = &value
	}
	_, err := a.Client.CreateTopic(ctx, partitions, 1, values, topic)
	return err
}

func (a admin) ListTopics(ctx context.Context) ([]string, error) {
	details, err := a.Client.ListTopics(ctx)
	return details.Names(), err
}

func (a admin) Partitions(ctx context.Context, topic string) (int, error) {
	details, err := a.Client.ListTopics(ctx, topic)
	if err != nil {
		return 0, err
	}
	return len(details[topic].Partitions), details[topic].Err
}

func (a admin) DeleteTopic(ctx context.Context, topic string) error {
	_, err := a.Client.DeleteTopic(ctx, topic)
	return err
}

func (a admin) TopicConfig(ctx context.Context, topic, name string) (string, error) {
	all, err := a.DescribeTopicConfigs(ctx, topic)
	if err != nil {
		return "", err
	}
	one, err := all.On(topic, nil)
	if err != nil {
		return "", err
	}
	for _, config := range one.Configs {
		if config.Key == name {
			return config.MaybeValue(), one.Err
		}
	}
	return "", one.Err
}

func (a admin) SetTopicConfig(ctx context.Context, topic, name, value string) error {
	responses, err := a.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: name, Value: &value}}, topic)
	if err != nil {
		return err
	}
	return responses[0].Err
}

func (a admin) ListGroups(ctx context.Context) ([]string, error) {
	listed, err := a.Client.ListGroups(ctx)
	return listed.Groups(), err
}

func (a admin) DescribeGroup(ctx context.Context, group string) (string, int, error) {
	described, err := a.DescribeGroups(ctx, group)
	if err != nil {
		return "", 0, err
	}
	return described[group].State, len(described[group].Members), described[group].Err
}

func (a admin) DeleteGroup(ctx context.Context, group string) error {
	_, err := a.Client.DeleteGroup(ctx, group)
	return err
}
