package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/tests/harness"
)

func TestStreams(t *testing.T) {
	t.Parallel()
	b := harness.Start(t, harness.Config{})
	for _, test := range []struct {
		name string
		run  func(*testing.T, *harness.Broker)
	}{
		{"topic ids", testStreamTopicIDs},
		{"many at once", testStreamsAtOnce},
		{"follow many", testFollowMany},
		{"reader before writer", testReaderBeforeWriter},
		{"closed", testClosedStream},
		{"names", testStreamNames},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t, b)
		})
	}
}

// testStreamTopicIDs lets an unmodified client use a stream and looks at the requests: they must be the versions that
// name topics by id only, once the stream exists.
func testStreamTopicIDs(t *testing.T, b *harness.Broker) {
	const stream, n = "a/b/c", 100
	var sniffer harness.Sniffer
	ctx := testContext(t)
	createTopic(t, b, stream, 1)
	producer := newKgo(t, b.Addr, kgo.Dialer(sniffer.Dial), kgo.DefaultProduceTopic(stream), kgo.AllowAutoTopicCreation())
	for i := range n {
		if err := producer.ProduceSync(ctx, kgo.StringRecord(fmt.Sprint(i))).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	consumer := newKgo(t, b.Addr, kgo.Dialer(sniffer.Dial), kgo.ConsumeTopics(stream))
	records, err := pollRecords(ctx, consumer, n)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range records {
		if string(r.Value) != fmt.Sprint(i) || r.Offset != int64(i) || r.Topic != stream {
			t.Fatalf("record %q of %s at offset %d, want %d", r.Value, r.Topic, r.Offset, i)
		}
	}
	const byID = 13
	for _, key := range []kmsg.Key{kmsg.Produce, kmsg.Fetch} {
		versions := sniffer.Versions(int16(key))
		if len(versions) == 0 || slices.Min(versions) < byID {
			t.Errorf("%s was sent in versions %d, want only those from %d on", key.Name(), versions, byID)
		}
	}
}

// testReaderBeforeWriter lets unmodified clients read streams that nobody has written to yet: by themselves, in a group,
// and kcat. They must get the first record, go on from there, and leave nothing behind where nothing is written.
func testReaderBeforeWriter(t *testing.T, b *harness.Broker) {
	ctx := testContext(t)
	start := kgo.ConsumeResetOffset(kgo.NewOffset().AtStart())
	readers := map[string]*kgo.Client{
		"alone":                   newKgo(t, b.Addr, start, kgo.ConsumeTopics("early/alone"), kgo.MetadataMinAge(50*time.Millisecond)),
		"alone, from the end":     newKgo(t, b.Addr, kgo.ConsumeResetOffset(kgo.NewOffset().AtEnd()), kgo.ConsumeTopics("early/end")),
		"partition":               newKgo(t, b.Addr, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"early/partition": {0: kgo.NewOffset().At(0)}})),
		"group":                   newKgo(t, b.Addr, start, kgo.ConsumeTopics("early/group"), kgo.ConsumerGroup("early")),
		"alone, and may create":   newKgo(t, b.Addr, start, kgo.ConsumeTopics("early/create"), kgo.AllowAutoTopicCreation()),
		"many, one is never made": newKgo(t, b.Addr, start, kgo.ConsumeTopics("early/one", "early/never")),
	}
	streams := map[string]string{"alone": "early/alone", "alone, from the end": "early/end", "partition": "early/partition", "group": "early/group",
		"alone, and may create": "early/create", "many, one is never made": "early/one"}
	fetches := func() float64 { return b.Metric(`brooklet_kafkaproto_requests_total{api="Fetch"}`) }
	for name, c := range readers { // each is in its fetch
		before := fetches()
		wait, cancel := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			c.PollFetches(wait)
		}()
		until(t, name+" fetches", func() bool { return fetches() > before })
		cancel()
		<-done
	}
	if _, err := newAdmin(t, b.Addr).DeleteTopic(ctx, "early/alone"); !errors.Is(err, kerr.UnknownTopicOrPartition) {
		t.Errorf("deleting a stream that was only read: error %v", err)
	}
	producer := newKgo(t, b.Addr)
	for i := range 3 {
		for name, c := range readers {
			if err := producer.ProduceSync(ctx, &kgo.Record{Topic: streams[name], Value: fmt.Append(nil, i)}).FirstErr(); err != nil {
				t.Fatal(err)
			}
			records, err := pollRecords(ctx, c, 1)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if r := records[0]; len(records) != 1 || r.Offset != int64(i) || string(r.Value) != fmt.Sprint(i) {
				t.Fatalf("%s: got %d records, the first %q at %d, want %d", name, len(records), r.Value, r.Offset, i)
			}
		}
	}
	if _, err := newAdmin(t, b.Addr).DeleteTopic(ctx, "early/never"); !errors.Is(err, kerr.UnknownTopicOrPartition) {
		t.Errorf("deleting a stream that was only read: error %v", err)
	}
}

// testClosedStream lets an unmodified producer write to a closed stream: it must be told at once, and be able to go on with
// other streams. Readers do not care.
func testClosedStream(t *testing.T, b *harness.Broker) {
	ctx := testContext(t)
	producer := newKgo(t, b.Addr)
	record := func(stream, value string) *kgo.Record { return &kgo.Record{Topic: stream, Value: []byte(value)} }
	if err := producer.ProduceSync(ctx, record("closed/a", "last")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	brooklet(t, b, nil, "close", "closed/a")
	for range 3 {
		mustBe(t, "writing to a closed stream", producer.ProduceSync(ctx, record("closed/a", "x")).FirstErr(), kerr.PolicyViolation)
		if err := producer.ProduceSync(ctx, record("closed/b", "open")).FirstErr(); err != nil {
			t.Errorf("writing to another stream: %v", err)
		}
	}
	if r := consume(t, b, "closed/a", 0, kgo.NewOffset().AtStart(), 1); string(r[0].Value) != "last" {
		t.Errorf("the closed stream holds %q", r[0].Value)
	}
	if end := endOffset(t, b, "closed/a", 0); end != 1 {
		t.Errorf("the closed stream ends at %d, want 1", end)
	}
}

// testStreamsAtOnce makes 2,000 streams by writing to them, through one producer.
func testStreamsAtOnce(t *testing.T, b *harness.Broker) {
	const streams, perStream = 2000, 3
	producer := newKgo(t, b.Addr, kgo.AllowAutoTopicCreation())
	var records []*kgo.Record
	for range perStream {
		for i := range streams {
			records = append(records, &kgo.Record{Topic: fmt.Sprintf("devices/%d", i), Value: fmt.Append(nil, i)})
		}
	}
	if err := producer.ProduceSync(testContext(t), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	c := harness.Dial(t, b.Addr)
	for i := range streams {
		if end := listOffset(t, c, fmt.Sprintf("devices/%d", i), 0, -1).Offset; end != perStream {
			t.Fatalf("stream %d has %d records, want %d", i, end, perStream)
		}
	}
}

// testFollowMany follows 500 streams with one consumer, of which one gets a record now and then.
func testFollowMany(t *testing.T, b *harness.Broker) {
	const streams = 500
	offsets := make(map[string]map[int32]kgo.Offset)
	c := harness.Dial(t, b.Addr)
	for i := range streams {
		name := fmt.Sprintf("followed/%d", i)
		produceBatch(t, c, name, 0, oneRecord())
		offsets[name] = map[int32]kgo.Offset{0: kgo.NewOffset().AtStart()}
	}
	ctx := testContext(t)
	consumer := newKgo(t, b.Addr, kgo.ConsumePartitions(offsets), kgo.FetchMaxWait(30*time.Second))
	if _, err := pollRecords(ctx, consumer, streams); err != nil {
		t.Fatal(err)
	}
	for _, i := range []int{7, 499, 0} {
		name := fmt.Sprintf("followed/%d", i)
		begin := time.Now()
		produceBatch(t, c, name, 0, oneRecord())
		got, err := pollRecords(ctx, consumer, 1)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != 1 || got[0].Topic != name || got[0].Offset != 1 {
			t.Fatalf("got %d records, the first of %s at %d, want the one of %s at 1", len(got), got[0].Topic, got[0].Offset, name)
		}
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("the record arrived after %v: the consumer was not woken by it", took)
		}
	}
}

// testStreamNames writes to names that are not allowed.
func testStreamNames(t *testing.T, b *harness.Broker) {
	c := harness.Dial(t, b.Addr)
	for _, name := range []string{"/", "a/", "/a", "a//b", "a/./b", "a/../b", "a/\x00", "_private/a", "topics/orders/0"} {
		resp := harness.Do[*kmsg.ProduceResponse](c, produceRequest(9, name, 0, oneRecord()))
		mustBe(t, fmt.Sprintf("producing to %q", name), kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode), kerr.InvalidTopicException)
	}
	for _, name := range []string{"größe/ü", "users/a b/c", "long/" + strings.Repeat("x", 1000)} {
		if got := produceBatch(t, c, name, 0, oneRecord()); got != 0 {
			t.Errorf("the stream %q begins at %d", name, got)
		}
	}
	resp := harness.Do[*kmsg.ProduceResponse](c, produceRequest(9, "names/alice", 1, oneRecord())) // it has partition 0 only
	mustBe(t, "producing to partition 1 of a stream", kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode), kerr.UnknownTopicOrPartition)
}
