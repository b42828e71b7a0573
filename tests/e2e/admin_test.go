package e2e

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/tests/harness"
)

func TestAdmin(t *testing.T) {
	t.Parallel()
	b := harness.Start(t, harness.Config{Flags: []string{"--flush-interval", "50ms", "--retention-check-interval", "1s"}})
	for _, test := range []struct {
		name string
		run  func(*testing.T, *harness.Broker)
	}{
		{"many topics in one request", func(t *testing.T, b *harness.Broker) { testManyTopics(t, b, "bulk", true) }},
		{"many topics, a request each", func(t *testing.T, b *harness.Broker) { testManyTopics(t, b, "single", false) }},
		{"delete and recreate", testRecreate},
		{"delete and recreate a stream", testRecreateStream},
		{"create partitions", testCreatePartitions},
		{"configs", testConfigs},
		{"delete records", testDeleteRecords},
		{"retention by time", testRetentionTime},
		{"retention by size", testRetentionBytes},
		{"retention of a stream", testRetentionStream},
		{"log append time", testLogAppendTime},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t, b)
		})
	}
}

// testManyTopics makes, lists, describes, writes to and deletes 100 topics of 30 partitions.
func testManyTopics(t *testing.T, b *harness.Broker, prefix string, bulk bool) {
	const topics, partitions = 100, 30
	ctx := testContext(t)
	admin := newAdmin(t, b.Addr)
	names := make([]string, topics)
	for i := range names {
		names[i] = fmt.Sprintf("%s-%03d", prefix, i)
	}
	lap := stopwatch(t)
	forEach := func(call func(names ...string) error) {
		t.Helper()
		if bulk {
			if err := call(names...); err != nil {
				t.Fatal(err)
			}
			return
		}
		for _, name := range names {
			if err := call(name); err != nil {
				t.Fatal(err)
			}
		}
	}
	forEach(func(names ...string) error {
		made, err := admin.CreateTopics(ctx, partitions, 1, nil, names...)
		return errors.Join(err, made.Error())
	})
	lap("creating")

	listed, err := admin.ListTopics(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if got := len(listed[name].Partitions); got != partitions {
			t.Fatalf("topic %s has %d partitions in the list, want %d", name, got, partitions)
		}
	}
	lap("listing")
	configs, err := admin.DescribeTopicConfigs(ctx, names...)
	if err != nil || len(configs) != topics {
		t.Fatalf("configs of %d topics, %v", len(configs), err)
	}
	lap("describing")

	producer := newKgo(t, b.Addr, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	var records []*kgo.Record
	for _, name := range names {
		for p := range int32(partitions) {
			records = append(records, &kgo.Record{Topic: name, Partition: p, Value: []byte("value")})
		}
	}
	if err := producer.ProduceSync(ctx, records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	lap("writing to every partition")
	ends, err := admin.ListEndOffsets(ctx, names...)
	if err := errors.Join(err, ends.Error()); err != nil {
		t.Fatal(err)
	}
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset != 1 {
			t.Errorf("%s/%d ends at %d, want 1", o.Topic, o.Partition, o.Offset)
		}
	})
	lap("asking for every end")
	forEach(func(names ...string) error {
		gone, err := admin.DeleteTopics(ctx, names...)
		return errors.Join(err, gone.Error())
	})
	lap("deleting")
	listed, err = newAdmin(t, b.Addr).ListTopics(ctx) // the old client caches the list
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if listed.Has(name) {
			t.Errorf("topic %s is listed after it was deleted", name)
		}
	}
}

// stopwatch returns a function that logs how long the step before it took.
func stopwatch(t *testing.T) func(step string) {
	last := time.Now()
	return func(step string) {
		t.Logf("%s took %v", step, time.Since(last).Round(time.Millisecond))
		last = time.Now()
	}
}

func testRecreate(t *testing.T, b *harness.Broker) {
	const topic = "recreated"
	ctx := testContext(t)
	old := createTopic(t, b, topic, 1)
	c := harness.Dial(t, b.Addr)
	for range 10 {
		produceBatch(t, c, topic, 0, oneRecord())
	}
	consumer := newKgo(t, b.Addr, kgo.MetadataMinAge(50*time.Millisecond),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}))
	if _, err := pollRecords(ctx, consumer, 10); err != nil {
		t.Fatal(err)
	}
	if _, err := newAdmin(t, b.Addr).DeleteTopic(ctx, topic); err != nil {
		t.Fatal(err)
	}
	mustBe(t, "asking for a deleted topic", kerr.ErrorForCode(tryListOffset(c, topic, 0, -1).ErrorCode), kerr.UnknownTopicOrPartition)
	mustBe(t, "fetching a deleted topic by id", fetchByID(c, old.ID), kerr.UnknownTopicID)

	again := createTopic(t, b, topic, 1)
	if again.ID == old.ID {
		t.Errorf("the new topic has the id of the old one, %v", old.ID)
	}
	mustBe(t, "fetching the old topic by id", fetchByID(c, old.ID), kerr.UnknownTopicID)
	if err := fetchByID(c, again.ID); err != nil {
		t.Errorf("fetching the new topic by id: %v", err)
	}
	if got := produceBatch(t, c, topic, 0, oneRecord()); got != 0 {
		t.Errorf("the new topic begins at offset %d, want 0", got)
	}
	// The old consumer stands at 10. It must hear of the change and not wait for ever.
	for {
		fetches := consumer.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatal("the consumer of the old topic was not told that it is gone")
		}
		err := fetches.Err()
		if errors.Is(err, kerr.UnknownTopicID) || errors.Is(err, kerr.UnknownTopicOrPartition) || errors.Is(err, kerr.OffsetOutOfRange) {
			return
		}
		if records := fetches.Records(); len(records) > 0 && records[0].Offset == 0 {
			return // it has started over with the new topic
		}
	}
}

// fetchByID reads a topic as Fetch v13 does.
func fetchByID(c *harness.Conn, id [16]byte) error {
	req := fetchRequest(13, "", 0, 0)
	req.Topics[0].TopicID = id
	resp := harness.Do[*kmsg.FetchResponse](c, req)
	return errors.Join(kerr.ErrorForCode(resp.ErrorCode), kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode))
}

func testRecreateStream(t *testing.T, b *harness.Broker) {
	const stream = "recreated/stream"
	ctx := testContext(t)
	admin := newAdmin(t, b.Addr)
	old := createTopic(t, b, stream, -1)
	c := harness.Dial(t, b.Addr)
	produceBatch(t, c, stream, 0, oneRecord())
	if _, err := admin.DeleteTopic(ctx, stream); err != nil {
		t.Fatal(err)
	}
	if p := tryListOffset(c, stream, 0, -1); p.ErrorCode != 0 || p.Offset != 0 { // like any stream that is not written yet
		t.Errorf("the end of a deleted stream is %d, %v; want 0", p.Offset, kerr.ErrorForCode(p.ErrorCode))
	}
	mustBe(t, "fetching a deleted stream by id", fetchByID(c, old.ID), kerr.UnknownTopicID)
	if got := produceBatch(t, c, stream, 0, oneRecord()); got != 0 { // made by writing to it
		t.Errorf("the new stream begins at offset %d, want 0", got)
	}
	topics, err := admin.ListTopics(ctx, stream)
	if err != nil || topics[stream].ID == old.ID {
		t.Errorf("the new stream has the id %v of the old one; %v", old.ID, err)
	}
}

func testCreatePartitions(t *testing.T, b *harness.Broker) {
	const topic = "growing"
	ctx := testContext(t)
	createTopic(t, b, topic, 1)
	admin := newAdmin(t, b.Addr)
	update := func(n int) error {
		resp, err := admin.UpdatePartitions(ctx, n, topic)
		return errors.Join(err, resp.Error())
	}
	if err := update(4); err != nil {
		t.Fatal(err)
	}
	mustBe(t, "shrinking", update(2), kerr.InvalidPartitions)
	c := harness.Dial(t, b.Addr)
	for p := range int32(4) {
		if got := produceBatch(t, c, topic, p, oneRecord()); got != 0 {
			t.Errorf("partition %d begins at %d", p, got)
		}
	}
}

func testConfigs(t *testing.T, b *harness.Broker) {
	const topic = "configured"
	ctx := testContext(t)
	createTopic(t, b, topic, 1, "retention.ms", "1000000", "max.message.bytes", "2000")
	admin := newAdmin(t, b.Addr)
	describe := func() map[string]string {
		t.Helper()
		described, err := admin.DescribeTopicConfigs(ctx, topic)
		if err != nil {
			t.Fatal(err)
		}
		values := make(map[string]string)
		for _, c := range described[0].Configs {
			values[c.Key] = c.MaybeValue()
		}
		return values
	}
	check := func(want map[string]string) {
		t.Helper()
		got := describe()
		for name, value := range want {
			if got[name] != value {
				t.Errorf("%s is %q, want %q", name, got[name], value)
			}
		}
	}
	check(map[string]string{"retention.ms": "1000000", "max.message.bytes": "2000", "cleanup.policy": "delete", "segment.bytes": "1073741824"})
	alter := func(changes ...kadm.AlterConfig) error {
		resp, err := admin.AlterTopicConfigs(ctx, changes, topic)
		if err != nil {
			return err
		}
		return resp[0].Err
	}
	if err := alter(kadm.AlterConfig{Op: kadm.SetConfig, Name: "retention.ms", Value: kadm.StringPtr("5000")}, kadm.AlterConfig{Op: kadm.DeleteConfig, Name: "max.message.bytes"}); err != nil {
		t.Fatal(err)
	}
	check(map[string]string{"retention.ms": "5000", "max.message.bytes": strconv.Itoa(defaultLimit)})
	mustBe(t, "an unknown config", alter(kadm.AlterConfig{Op: kadm.SetConfig, Name: "no.such.config", Value: kadm.StringPtr("1")}), kerr.InvalidConfig)
	mustBe(t, "a bad value", alter(kadm.AlterConfig{Op: kadm.SetConfig, Name: "retention.ms", Value: kadm.StringPtr("soon")}), kerr.InvalidConfig)
	check(map[string]string{"retention.ms": "5000"})
}

func testDeleteRecords(t *testing.T, b *harness.Broker) {
	const topic = "trimmed"
	ctx := testContext(t)
	createTopic(t, b, topic, 1)
	c := harness.Dial(t, b.Addr)
	batch := harness.Batch(noCompression, make([]harness.Record, 10)...)
	for range 3 {
		produceBatch(t, c, topic, 0, batch)
	}
	admin := newAdmin(t, b.Addr)
	trim := func(offset int64) error {
		offsets := make(kadm.Offsets)
		offsets.AddOffset(topic, 0, offset, -1)
		resp, err := admin.DeleteRecords(ctx, offsets)
		return errors.Join(err, resp.Error())
	}
	if err := trim(15); err != nil { // inside the second batch
		t.Fatal(err)
	}
	if got := startOffset(t, b, topic, 0); got != 15 {
		t.Errorf("the partition starts at %d, want 15", got)
	}
	if first := consume(t, b, topic, 0, kgo.NewOffset().AtStart(), 15)[0].Offset; first != 15 {
		t.Errorf("a consumer at the start reads offset %d, want 15", first)
	}
	mustBe(t, "trimming beyond the end", trim(31), kerr.OffsetOutOfRange)
	if err := trim(3); err != nil {
		t.Errorf("trimming what is gone: %v", err)
	}
	if err := trim(-1); err != nil { // everything
		t.Fatal(err)
	}
	if start, end := startOffset(t, b, topic, 0), endOffset(t, b, topic, 0); start != 30 || end != 30 {
		t.Errorf("the partition holds %d to %d, want nothing and 30", start, end)
	}
}

// awaitFlush waits until everything that was appended is in the bucket. Retention drops what one flush wrote as a whole.
func awaitFlush(t *testing.T, b *harness.Broker) {
	t.Helper()
	until(t, "everything is flushed", func() bool { return b.Metric("brooklet_streamstore_unflushed_appends") == 0 })
}

// testRetentionTime writes old records and one of now. Only the latter may stay.
func testRetentionTime(t *testing.T, b *harness.Broker) {
	const topic = "retention-time"
	createTopic(t, b, topic, 1, "retention.ms", "3600000")
	c := harness.Dial(t, b.Addr)
	for range 20 {
		produceBatch(t, c, topic, 0, oneRecord()) // of a past day
	}
	awaitFlush(t, b)
	produceBatch(t, c, topic, 0, harness.Batch(noCompression, harness.Record{Value: []byte("now"), Timestamp: time.Now().UnixMilli()}))
	until(t, "the start offset moves to 20", func() bool { return startOffset(t, b, topic, 0) == 20 })
	if end := endOffset(t, b, topic, 0); end != 21 {
		t.Errorf("the partition ends at %d, want 21", end)
	}
	if got := consume(t, b, topic, 0, kgo.NewOffset().AtStart(), 1); string(got[0].Value) != "now" {
		t.Errorf("the record left is %q", got[0].Value)
	}
}

func testRetentionBytes(t *testing.T, b *harness.Broker) {
	const topic, limit = "retention-bytes", 1_000_000
	createTopic(t, b, topic, 1, "retention.bytes", strconv.Itoa(limit))
	c := harness.Dial(t, b.Addr)
	batch := harness.Batch(noCompression, harness.Record{Value: incompressible(100_000), Timestamp: time.Now().UnixMilli()})
	const flushes, perFlush = 10, 3
	for range flushes {
		for range perFlush {
			produceBatch(t, c, topic, 0, batch)
		}
		awaitFlush(t, b)
	}
	// As in Kafka, at least the limit is kept, and less than that and one flush more.
	least := int64(limit / len(batch))
	const written = flushes * perFlush
	until(t, "the start offset moves near the limit", func() bool { return startOffset(t, b, topic, 0) >= written-least-perFlush-1 })
	if start := startOffset(t, b, topic, 0); written-start < least {
		t.Errorf("%d batches of %d bytes are left, less than retention.bytes", written-start, len(batch))
	}
}

func testRetentionStream(t *testing.T, b *harness.Broker) {
	const stream = "retention/stream"
	createTopic(t, b, stream, 1, "retention.ms", "3600000")
	c := harness.Dial(t, b.Addr)
	produceBatch(t, c, stream, 0, oneRecord())
	const other = "retention/for-ever"
	produceBatch(t, c, other, 0, oneRecord())
	until(t, "the old record is dropped", func() bool { return startOffset(t, b, stream, 0) == 1 })
	if start := startOffset(t, b, other, 0); start != 0 {
		t.Errorf("a stream without settings lost records: it starts at %d", start)
	}
}

func testLogAppendTime(t *testing.T, b *harness.Broker) {
	const topic = "append-time"
	createTopic(t, b, topic, 1, "message.timestamp.type", "LogAppendTime")
	before := time.Now().Add(-time.Millisecond)
	producer := newKgo(t, b.Addr, kgo.DefaultProduceTopic(topic), kgo.ProducerBatchCompression(kgo.Lz4Compression()))
	ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
	defer cancel()
	for range 3 {
		if err := producer.ProduceSync(ctx, &kgo.Record{Value: []byte("a"), Timestamp: day}, &kgo.Record{Value: []byte("b"), Timestamp: day}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	after := time.Now().Add(time.Millisecond)
	for _, r := range consume(t, b, topic, 0, kgo.NewOffset().AtStart(), 6) {
		if r.Timestamp.Before(before) || r.Timestamp.After(after) {
			t.Errorf("record %d has the time %v, want one from %v to %v", r.Offset, r.Timestamp, before, after)
		}
		if r.Attrs.TimestampType() != 1 {
			t.Errorf("record %d has timestamp type %d, want 1", r.Offset, r.Attrs.TimestampType())
		}
	}
	if got := listOffset(t, harness.Dial(t, b.Addr), topic, 0, before.UnixMilli()); got.Offset != 0 || got.Timestamp < before.UnixMilli() {
		t.Errorf("looking for a time before all found offset %d with time %d", got.Offset, got.Timestamp)
	}
}
