package e2e

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/tests/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// stepTimeout bounds what a test waits for between two checks. It is far above what is needed.
const stepTimeout = time.Minute

// testContext ends with the test or after stepTimeout.
func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
	t.Cleanup(cancel)
	return ctx
}

// newKgo returns a client that lives as long as the test.
func newKgo(t *testing.T, addr string, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	c, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(addr)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func newAdmin(t *testing.T, addr string) *kadm.Client { return kadm.NewClient(newKgo(t, addr)) }

// createTopic makes a topic with configs given as name, value, name, value.
func createTopic(t *testing.T, b *harness.Broker, name string, partitions int32, configs ...string) kadm.CreateTopicResponse {
	t.Helper()
	set := make(map[string]*string)
	for i := 0; i < len(configs); i += 2 {
		set[configs[i]] = &configs[i+1]
	}
	resp, err := newAdmin(t, b.Addr).CreateTopic(testContext(t), partitions, 1, set, name)
	if err != nil {
		t.Fatalf("creating topic %s: %v", name, err)
	}
	return resp
}

// until calls ok until it returns true. It fails the test with what when that takes too long.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	const interval = 20 * time.Millisecond
	ctx := testContext(t)
	for tick := time.Tick(interval); !ok(); {
		select {
		case <-tick:
		case <-ctx.Done():
			t.Fatalf("not within %v: %s", stepTimeout, what)
		}
	}
}

// endOffset returns the high watermark of a partition.
func endOffset(t *testing.T, b *harness.Broker, topic string, partition int32) int64 {
	t.Helper()
	return listOffset(t, harness.Dial(t, b.Addr), topic, partition, -1).Offset
}

// startOffset returns the first offset of a partition.
func startOffset(t *testing.T, b *harness.Broker, topic string, partition int32) int64 {
	t.Helper()
	return listOffset(t, harness.Dial(t, b.Addr), topic, partition, -2).Offset
}

// listOffset asks for a timestamp, or a special one, and fails the test on an error.
func listOffset(t *testing.T, c *harness.Conn, topic string, partition int32, timestamp int64) kmsg.ListOffsetsResponseTopicPartition {
	t.Helper()
	p := tryListOffset(c, topic, partition, timestamp)
	if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
		t.Fatalf("ListOffsets of %s/%d at %d: %v", topic, partition, timestamp, err)
	}
	return p
}

func tryListOffset(c *harness.Conn, topic string, partition int32, timestamp int64) kmsg.ListOffsetsResponseTopicPartition {
	req := kmsg.NewPtrListOffsetsRequest()
	req.Version = 7
	req.ReplicaID = -1
	rt := kmsg.NewListOffsetsRequestTopic()
	rt.Topic = topic
	rp := kmsg.NewListOffsetsRequestTopicPartition()
	rp.Partition, rp.Timestamp = partition, timestamp
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	return harness.Do[*kmsg.ListOffsetsResponse](c, req).Topics[0].Partitions[0]
}

// produceRequest asks to append one batch with acks=all.
func produceRequest(version int16, topic string, partition int32, batch []byte) *kmsg.ProduceRequest {
	req := kmsg.NewPtrProduceRequest()
	req.Version = version
	req.Acks = -1
	req.TimeoutMillis = int32(stepTimeout.Milliseconds())
	rt := kmsg.NewProduceRequestTopic()
	rt.Topic = topic
	rp := kmsg.NewProduceRequestTopicPartition()
	rp.Partition, rp.Records = partition, batch
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	return req
}

// produceBatch appends a batch and returns its base offset.
func produceBatch(t *testing.T, c *harness.Conn, topic string, partition int32, batch []byte) int64 {
	t.Helper()
	p := harness.Do[*kmsg.ProduceResponse](c, produceRequest(9, topic, partition, batch)).Topics[0].Partitions[0]
	if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
		t.Fatalf("produce to %s/%d: %v", topic, partition, err)
	}
	return p.BaseOffset
}

// fetchRequest asks for one partition of a topic by name.
func fetchRequest(version int16, topic string, partition int32, offset int64) *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.Version = version
	req.MaxWaitMillis = 500
	req.MinBytes = 1
	rt := kmsg.NewFetchRequestTopic()
	rt.Topic = topic
	rp := kmsg.NewFetchRequestTopicPartition()
	rp.Partition, rp.FetchOffset, rp.PartitionMaxBytes = partition, offset, 1<<20
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	return req
}

// fetchPartition reads a partition as it is stored.
func fetchPartition(t *testing.T, c *harness.Conn, topic string, partition int32, offset int64) kmsg.FetchResponseTopicPartition {
	t.Helper()
	p := harness.Do[*kmsg.FetchResponse](c, fetchRequest(11, topic, partition, offset)).Topics[0].Partitions[0]
	if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
		t.Fatalf("fetch of %s/%d at %d: %v", topic, partition, offset, err)
	}
	return p
}

// consume reads n records of a partition from an offset on.
func consume(t *testing.T, b *harness.Broker, topic string, partition int32, offset kgo.Offset, n int) []*kgo.Record {
	t.Helper()
	c := newKgo(t, b.Addr, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {partition: offset}}))
	defer c.Close()
	records, err := pollRecords(testContext(t), c, n)
	if err != nil {
		t.Fatalf("consuming %s/%d, after %d of %d records: %v", topic, partition, len(records), n, err)
	}
	return records
}

// pollRecords polls until n records have come.
func pollRecords(ctx context.Context, c *kgo.Client, n int) ([]*kgo.Record, error) {
	var records []*kgo.Record
	for len(records) < n {
		fetches := c.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return records, err
		}
		records = append(records, fetches.Records()...)
	}
	return records, nil
}

// mustBe fails unless err is the Kafka error want.
func mustBe(t *testing.T, what string, err error, want *kerr.Error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: error %v, want %v", what, err, want)
	}
}
