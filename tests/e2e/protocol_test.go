package e2e

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/tests/harness"
)

var noCompression = kgo.NoCompression()

func TestProtocol(t *testing.T) {
	t.Parallel()
	b := harness.Start(t, harness.Config{})
	for _, test := range []struct {
		name string
		run  func(*testing.T, *harness.Broker)
	}{
		{"every version", testEveryVersion},
		{"old produce", testOldProduce},
		{"unknown requests", testUnknownRequests},
		{"version negotiation", testNegotiation},
		{"reply order", testReplyOrder},
		{"metadata of all and none", testMetadataAllNone},
		{"fetch defaults", testFetchDefaults},
		{"fetch limits", testFetchLimits},
		{"kafka-python", testKafkaPython},
		{"librdkafka", testLibrdkafka},
		{"timestamps of records", testRecordTimestamps},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t, b)
		})
	}
}

func apiVersions(t *testing.T, c *harness.Conn) []kmsg.ApiVersionsResponseApiKey {
	t.Helper()
	req := kmsg.NewPtrApiVersionsRequest()
	req.Version = 3
	req.ClientSoftwareName, req.ClientSoftwareVersion = "harness", "1"
	resp := harness.Do[*kmsg.ApiVersionsResponse](c, req)
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		t.Fatal(err)
	}
	return resp.ApiKeys
}

// oldestProduce is the first version of Produce that is served; lower ones are advertised only.
const oldestProduce = 3

// testEveryVersion sends a request in every version that is advertised. Each must be answered, and most must succeed.
func testEveryVersion(t *testing.T, b *harness.Broker) {
	c := harness.Dial(t, b.Addr)
	s := newSubject(t, b, "every-version")
	for _, k := range apiVersions(t, c) {
		low := k.MinVersion
		if k.ApiKey == int16(kmsg.Produce) {
			low = oldestProduce
		}
		for version := low; version <= k.MaxVersion; version++ {
			if k.ApiKey == int16(kmsg.DeleteTopics) { // needs one to delete
				s.fresh++
				createTopic(t, b, s.freshName(), 1)
			}
			req, succeeds := s.tryRequest(k.ApiKey, version)
			resp := harness.Do[kmsg.Response](c, req)
			if !succeeds {
				continue
			}
			for field, err := range errorCodes(resp) {
				t.Errorf("%s v%d: %s: %v", kmsg.NameForKey(k.ApiKey), version, field, err)
			}
		}
	}
}

// mustClose waits for the broker to close the connection without a further reply.
func mustClose(t *testing.T, c *harness.Conn, within time.Duration) {
	t.Helper()
	if frame, err := c.ReadFrame(within); !isClosed(err) {
		t.Errorf("the connection was not closed: reply of %d bytes, %v", len(frame), err)
	}
}

func isClosed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

func testOldProduce(t *testing.T, b *harness.Broker) {
	s := newSubject(t, b, "old-produce")
	for version := range int16(oldestProduce) {
		c := harness.Dial(t, b.Addr)
		c.Send(s.request(int16(kmsg.Produce), version))
		mustClose(t, c, stepTimeout)
	}
}

func testUnknownRequests(t *testing.T, b *harness.Broker) {
	metadata := kmsg.NewPtrMetadataRequest()
	metadata.Version = 99
	for _, req := range []kmsg.Request{metadata, kmsg.NewPtrLeaderAndISRRequest()} {
		c := harness.Dial(t, b.Addr)
		c.Send(req)
		mustClose(t, c, stepTimeout)
	}
}

// testNegotiation asks for ApiVersions in versions of the future (KIP-511).
func testNegotiation(t *testing.T, b *harness.Broker) {
	newest := int16(-1)
	for _, k := range apiVersions(t, harness.Dial(t, b.Addr)) {
		if k.ApiKey == int16(kmsg.ApiVersions) {
			newest = k.MaxVersion
		}
	}
	for _, version := range []int16{newest + 1, 99} {
		c := harness.Dial(t, b.Addr)
		req := kmsg.NewPtrApiVersionsRequest()
		req.Version = version
		req.ClientSoftwareName, req.ClientSoftwareVersion = "future", "1"
		c.Send(req)
		old := kmsg.NewPtrApiVersionsRequest() // the reply has the form of version 0
		resp := harness.Await[*kmsg.ApiVersionsResponse](c, old, c.Correlation())
		mustBe(t, fmt.Sprintf("version %d", version), kerr.ErrorForCode(resp.ErrorCode), kerr.UnsupportedVersion)
		if len(resp.ApiKeys) == 0 || !slices.ContainsFunc(resp.ApiKeys, func(k kmsg.ApiVersionsResponseApiKey) bool {
			return k.ApiKey == int16(kmsg.ApiVersions) && k.MaxVersion == newest
		}) {
			t.Errorf("version %d: the reply says %v, want ApiVersions up to %d", version, resp.ApiKeys, newest)
		}
		if len(apiVersions(t, c)) == 0 { // on the same connection
			t.Errorf("version %d: no versions afterwards", version)
		}
	}
}

// testReplyOrder sends three requests at once; the first takes longest.
func testReplyOrder(t *testing.T, b *harness.Broker) {
	createTopic(t, b, "reply-order", 2)
	const wait = 2 * time.Second
	fetch := fetchRequest(11, "reply-order", 0, 0)
	fetch.MaxWaitMillis = int32(wait.Milliseconds())
	metadata := kmsg.NewPtrMetadataRequest()
	metadata.Version = 9
	produce := produceRequest(9, "reply-order", 1, oneRecord())

	c := harness.Dial(t, b.Addr)
	begin := time.Now()
	c.Send(fetch)
	first := c.Correlation()
	c.Send(metadata)
	c.Send(produce)
	if got := harness.Await[*kmsg.FetchResponse](c, fetch, first); len(got.Topics[0].Partitions[0].RecordBatches) != 0 {
		t.Error("records in an empty partition")
	}
	if took := time.Since(begin); took < wait-100*time.Millisecond {
		t.Errorf("the fetch was answered after %v, want %v", took, wait)
	}
	harness.Await[*kmsg.MetadataResponse](c, metadata, first+1)
	for field, err := range errorCodes(harness.Await[*kmsg.ProduceResponse](c, produce, first+2)) {
		t.Error(field, err)
	}
}

func testMetadataAllNone(t *testing.T, b *harness.Broker) {
	createTopic(t, b, "all-none", 1)
	c := harness.Dial(t, b.Addr)
	var none []kmsg.MetadataRequestTopic
	empty := []kmsg.MetadataRequestTopic{}
	for _, test := range []struct {
		version int16
		topics  []kmsg.MetadataRequestTopic
		all     bool
	}{
		{0, empty, true},
		{1, none, true}, {1, empty, false},
		{9, none, true}, {9, empty, false},
		{12, none, true}, {12, empty, false},
		{13, none, true}, {13, empty, false},
	} {
		req := kmsg.NewPtrMetadataRequest()
		req.Version, req.Topics = test.version, test.topics
		resp := harness.Do[*kmsg.MetadataResponse](c, req)
		listed := slices.ContainsFunc(resp.Topics, func(topic kmsg.MetadataResponseTopic) bool { return *topic.Topic == "all-none" })
		what := fmt.Sprintf("v%d, null %v", test.version, test.topics == nil)
		if listed != test.all || !test.all && len(resp.Topics) != 0 {
			t.Errorf("%s: %d topics, the one there is among them: %v", what, len(resp.Topics), listed)
		}
		if len(resp.Brokers) != 1 || fmt.Sprintf("%s:%d", resp.Brokers[0].Host, resp.Brokers[0].Port) != b.Addr {
			t.Errorf("%s: brokers %v, want the one at %s", what, resp.Brokers, b.Addr)
		}
		if test.version >= 1 && resp.ControllerID != resp.Brokers[0].NodeID {
			t.Errorf("%s: controller %d", what, resp.ControllerID)
		}
		if test.version >= 2 && (resp.ClusterID == nil || len(*resp.ClusterID) != 22) {
			t.Errorf("%s: cluster id %v", what, resp.ClusterID)
		}
	}
}

// testFetchDefaults looks at the fields that clients act on when they are not at the protocol's defaults.
func testFetchDefaults(t *testing.T, b *harness.Broker) {
	createTopic(t, b, "defaults", 2)
	c := harness.Dial(t, b.Addr)
	produceBatch(t, c, "defaults", 0, oneRecord())
	for _, version := range []int16{4, 7, 11, 12} {
		for _, isolation := range []int8{0, 1} {
			req := fetchRequest(version, "defaults", 0, 0)
			req.IsolationLevel = isolation
			for _, partition := range []int32{1, 7} { // empty; unknown
				p := kmsg.NewFetchRequestTopicPartition()
				p.Partition, p.PartitionMaxBytes = partition, 1<<20
				req.Topics[0].Partitions = append(req.Topics[0].Partitions, p)
			}
			resp := harness.Do[*kmsg.FetchResponse](c, req)
			for _, p := range resp.Topics[0].Partitions {
				want := map[int32]struct {
					code   int16
					end    int64
					filled bool
				}{0: {0, 1, true}, 1: {0, 0, false}, 7: {kerr.UnknownTopicOrPartition.Code, -1, false}}[p.Partition]
				what := fmt.Sprintf("v%d isolation %d partition %d", version, isolation, p.Partition)
				if p.ErrorCode != want.code || p.HighWatermark != want.end || p.LastStableOffset != want.end {
					t.Errorf("%s: error %d, high watermark %d, last stable offset %d; want %d and %d", what, p.ErrorCode, p.HighWatermark, p.LastStableOffset, want.code, want.end)
				}
				if version >= 5 && p.LogStartOffset != min(want.end, 0) {
					t.Errorf("%s: log start offset %d", what, p.LogStartOffset)
				}
				if p.PreferredReadReplica != -1 {
					t.Errorf("%s: preferred read replica %d, want -1", what, p.PreferredReadReplica)
				}
				if len(p.AbortedTransactions) != 0 {
					t.Errorf("%s: aborted transactions %v", what, p.AbortedTransactions)
				}
				if p.RecordBatches == nil || (len(p.RecordBatches) > 0) != want.filled {
					t.Errorf("%s: %d bytes of records (null %v)", what, len(p.RecordBatches), p.RecordBatches == nil)
				}
			}
		}
	}
}

// testFetchLimits wants a batch that is larger than all limits, also behind a partition that is empty.
func testFetchLimits(t *testing.T, b *harness.Broker) {
	createTopic(t, b, "limits", 3, "max.message.bytes", "3000000")
	c := harness.Dial(t, b.Addr)
	large := harness.Batch(noCompression, harness.Record{Value: incompressible(2 << 20)})
	produceBatch(t, c, "limits", 1, large)
	produceBatch(t, c, "limits", 2, large)
	for _, version := range []int16{4, 11, 12} {
		req := fetchRequest(version, "limits", 0, 0)
		req.MaxBytes = 1024
		for _, partition := range []int32{1, 2} {
			req.Topics[0].Partitions = append(req.Topics[0].Partitions, req.Topics[0].Partitions[0])
			req.Topics[0].Partitions[partition].Partition = partition
		}
		for i := range req.Topics[0].Partitions {
			req.Topics[0].Partitions[i].PartitionMaxBytes = 1024
		}
		var sizes [3]int
		for _, p := range harness.Do[*kmsg.FetchResponse](c, req).Topics[0].Partitions {
			sizes[p.Partition] = len(p.RecordBatches)
		}
		if sizes != [3]int{0, len(large), 0} {
			t.Errorf("v%d: bytes per partition %v, want the whole batch of the first partition that has one", version, sizes)
		}
	}
}

// testKafkaPython sends what kafka-python 2.0.2 sends, the first two at once.
func testKafkaPython(t *testing.T, b *harness.Broker) {
	s := newSubject(t, b, "kafka-python")
	c := harness.Dial(t, b.Addr)
	versions, metadata := kmsg.NewPtrApiVersionsRequest(), kmsg.NewPtrMetadataRequest()
	metadata.Topics = []kmsg.MetadataRequestTopic{}
	if _, err := c.Write(slices.Concat(c.Frame(versions), c.Frame(metadata))); err != nil {
		t.Fatal(err)
	}
	harness.Await[*kmsg.ApiVersionsResponse](c, versions, c.Correlation()-1)
	harness.Await[*kmsg.MetadataResponse](c, metadata, c.Correlation())
	s.sequence(t, c, []keyVersion{{3, 1}, {0, 7}, {2, 1}, {1, 4}, {10, 0}, {19, 3}, {20, 3}})
}

// testLibrdkafka sends what librdkafka sends: 1.x with its features, then 2.x.
func testLibrdkafka(t *testing.T, b *harness.Broker) {
	s := newSubject(t, b, "librdkafka")
	c := harness.Dial(t, b.Addr)
	apiVersions(t, c)
	s.sequence(t, c, []keyVersion{{3, 4}, {22, 1}, {0, 7}, {2, 2}, {1, 11}, {23, 2}, {10, 2}})
	s.sequence(t, c, []keyVersion{{3, 12}, {22, 4}, {0, 10}, {2, 7}, {23, 2}, {1, 16}, {10, 2}, {19, 4}, {20, 4}, {32, 1}})
}

type keyVersion struct{ key, version int16 }

// sequence sends requests one after the other; each must succeed.
func (s *subject) sequence(t *testing.T, c *harness.Conn, requests []keyVersion) {
	t.Helper()
	for _, r := range requests {
		resp := harness.Do[kmsg.Response](c, s.request(r.key, r.version))
		for field, err := range errorCodes(resp) {
			t.Errorf("%s v%d: %s: %v", kmsg.NameForKey(r.key), r.version, field, err)
		}
	}
}

// testRecordTimestamps looks for records by time inside batches whose timestamps do not rise.
func testRecordTimestamps(t *testing.T, b *harness.Broker) {
	createTopic(t, b, "record-timestamps", 5)
	base := day.UnixMilli()
	for i, codec := range franzCodecs {
		t.Run(codecNames[i], func(t *testing.T) {
			c := harness.Dial(t, b.Addr)
			var records []harness.Record
			for _, ms := range []int64{50, 10, 90, 30, 70} {
				records = append(records, harness.Record{Value: []byte("value"), Timestamp: base + ms})
			}
			produceBatch(t, c, "record-timestamps", int32(i), harness.Batch(codec, records...))
			produceBatch(t, c, "record-timestamps", int32(i), harness.Batch(codec, harness.Record{Timestamp: base + 80}, harness.Record{Timestamp: base + 100}, harness.Record{Timestamp: base + 85}))
			for _, find := range []struct{ at, offset, timestamp int64 }{
				{base, 0, base + 50},
				{base + 50, 0, base + 50},
				{base + 51, 2, base + 90},
				{base + 90, 2, base + 90},
				{base + 91, 6, base + 100},
				{base + 101, -1, -1},
				{-3, 6, base + 100}, // the largest
			} {
				got := listOffset(t, c, "record-timestamps", int32(i), find.at)
				if got.Offset != find.offset || got.Timestamp != find.timestamp {
					t.Errorf("time %d: offset %d with time %d, want %d with %d", find.at-base, got.Offset, got.Timestamp-base, find.offset, find.timestamp-base)
				}
			}
		})
	}
}

// announce returns the size field of a frame.
func announce(size uint32) []byte { return binary.BigEndian.AppendUint32(nil, size) }
