package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/tests/harness"
)

// record is a record as every client library can express it.
type record struct {
	partition  int32
	key, value []byte // nil is null
	headers    []header
	time       time.Time // zero: the client's clock
	offset     int64     // when consumed
}

type header struct {
	key   string
	value []byte
}

// position is where a consumer starts: an offset, earliest, latest, or a time.
type position struct {
	offset int64
	at     time.Time
}

var (
	earliest = position{offset: -2}
	latest   = position{offset: -1}
)

func atOffset(offset int64) position { return position{offset: offset} }

func atTime(at time.Time) position { return position{at: at} }

// codec is a compression codec by its number in the attributes of a batch.
type codec int

var codecNames = []string{"none", "gzip", "snappy", "lz4", "zstd"}

func (c codec) String() string { return codecNames[c] }

const codecZstd codec = 4

type produceOptions struct {
	codec      codec
	idempotent bool
	autoCreate bool
}

// client is a client library, set to sizes above the broker's limits so that the broker is the one to refuse.
type client interface {
	// produce writes records, in order per partition.
	produce(ctx context.Context, topic string, o produceOptions, records []record) error
	// consume reads the next n records of a partition.
	consume(ctx context.Context, topic string, partition int32, from position, n int) ([]record, error)
	// offset is the offset at a position, as ListOffsets says.
	offset(ctx context.Context, topic string, partition int32, at position) (int64, error)
	// isTooLarge recognizes MESSAGE_TOO_LARGE.
	isTooLarge(err error) bool
}

// clientKind is a client library, or a setting of it that makes it speak other versions of the protocol.
type clientKind struct {
	name string
	open func(addr string, s *harness.Sniffer) client
	// What it cannot do.
	noZstd, noIdempotence, readsEmptyAsNull bool
	// Versions that it is expected to use.
	produceVersion, fetchVersion int16
}

var clientKinds = []clientKind{
	{name: "franz-go", open: openFranz, produceVersion: 13, fetchVersion: 18},
	{name: "franz-go as 0.11", open: openFranz011, noZstd: true, produceVersion: 3, fetchVersion: 5},
	{name: "sarama", open: openSarama, produceVersion: 9, fetchVersion: 12},
	{name: "sarama as 0.11", open: openSarama011, noZstd: true, produceVersion: 3, fetchVersion: 5},
	{name: "sarama at its newest", open: openSaramaNewest, produceVersion: 10, fetchVersion: 12},
	{name: "kafka-go", open: openKafkaGo, noIdempotence: true, readsEmptyAsNull: true, produceVersion: 8, fetchVersion: 10},
}

// scene is what a duty works with.
type scene struct {
	client
	kind   clientKind
	broker *harness.Broker
	topic  string // exists with partitions partitions, unless the duty makes it
}

const scenePartitions = 4

// duties are what every client must be able to do.
var duties = []struct {
	name string
	// configs of the topic, name, value, name, value. A topic "" is left to the duty.
	configs []string
	run     func(t *testing.T, s scene)
}{
	{name: "produce and consume", run: dutyProduceConsume},
	{name: "idempotence", run: dutyIdempotence},
	{name: "codecs", run: dutyCodecs},
	{name: "sizes", run: dutySizes},
	{name: "raised size limit", configs: []string{"max.message.bytes", "3000000"}, run: dutyRaisedLimit},
	{name: "too large", run: dutyTooLarge},
	{name: "headers", run: dutyHeaders},
	{name: "nulls", run: dutyNulls},
	{name: "timestamps", run: dutyTimestamps},
	{name: "positions", run: dutyPositions},
	{name: "latest", run: dutyLatest},
	{name: "order and partitions", run: dutyOrder},
	{name: "auto-creation", run: dutyAutoCreate},
	{name: "stream", run: dutyStream},
	{name: "many streams", run: dutyManyStreams},
}

func TestClients(t *testing.T) {
	t.Parallel()
	b := harness.Start(t, harness.Config{Flags: []string{"--default-partitions", "3"}})
	for _, kind := range clientKinds {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			var sniffer harness.Sniffer
			for i, duty := range duties {
				t.Run(duty.name, func(t *testing.T) {
					s := scene{client: kind.open(b.Addr, &sniffer), kind: kind, broker: b,
						topic: fmt.Sprintf("%s.%d", strings.ReplaceAll(kind.name, " ", "-"), i)}
					if i < len(duties)-3 { // the last ones make what they need
						createTopic(t, b, s.topic, scenePartitions, duty.configs...)
					}
					duty.run(t, s)
				})
			}
			checkVersions(t, &sniffer, kmsg.Produce, kind.produceVersion)
			checkVersions(t, &sniffer, kmsg.Fetch, kind.fetchVersion)
		})
	}
}

// checkVersions makes sure that the client was tested with the versions that the table says.
func checkVersions(t *testing.T, s *harness.Sniffer, key kmsg.Key, want int16) {
	t.Helper()
	if got := s.Versions(int16(key)); !slices.Contains(got, want) {
		t.Errorf("%s was sent in versions %d, expected %d among them", key.Name(), got, want)
	}
}

// mustProduce and mustConsume are the client's, with a fault failing the test.
func (s scene) mustProduce(t *testing.T, o produceOptions, records ...record) {
	t.Helper()
	if err := s.produce(testContext(t), s.topic, o, records); err != nil {
		t.Fatalf("produce to %s: %v", s.topic, err)
	}
}

func (s scene) mustConsume(t *testing.T, partition int32, from position, n int) []record {
	t.Helper()
	got, err := s.consume(testContext(t), s.topic, partition, from, n)
	if err != nil {
		t.Fatalf("consume of %s/%d from %v: %v", s.topic, partition, from, err)
	}
	return got
}

// roundTrip produces records to partition 0 and checks that they come back unchanged.
func (s scene) roundTrip(t *testing.T, o produceOptions, records ...record) {
	t.Helper()
	begin := endOffset(t, s.broker, s.topic, 0)
	s.mustProduce(t, o, records...)
	s.check(t, s.mustConsume(t, 0, atOffset(begin), len(records)), records, begin)
}

// check compares what was consumed with what was produced, at dense offsets from begin on.
func (s scene) check(t *testing.T, got, want []record, begin int64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d records, want %d", len(got), len(want))
	}
	for i := range want {
		g, w := got[i], want[i]
		if g.offset != begin+int64(i) {
			t.Fatalf("record %d has offset %d, want %d", i, g.offset, begin+int64(i))
		}
		if !s.sameBytes(g.key, w.key) || !s.sameBytes(g.value, w.value) {
			t.Fatalf("record %d: key %s value %s, want %s and %s", i, short(g.key), short(g.value), short(w.key), short(w.value))
		}
		if !w.time.IsZero() && !g.time.Equal(w.time) {
			t.Fatalf("record %d: time %v, want %v", i, g.time, w.time)
		}
		if !slices.EqualFunc(g.headers, w.headers, func(a, b header) bool { return a.key == b.key && bytes.Equal(a.value, b.value) }) {
			t.Fatalf("record %d: headers %v, want %v", i, g.headers, w.headers)
		}
	}
}

// sameBytes tells null from empty if the library does.
func (s scene) sameBytes(a, b []byte) bool {
	return bytes.Equal(a, b) && (s.kind.readsEmptyAsNull || (a == nil) == (b == nil))
}

func short(b []byte) string {
	if b == nil {
		return "null"
	}
	return fmt.Sprintf("%.20q (%d bytes)", b, len(b))
}

// numbered returns n records with different keys and values.
func numbered(partition int32, n int) []record {
	records := make([]record, n)
	for i := range records {
		records[i] = record{partition: partition, key: fmt.Appendf(nil, "key %d", i), value: fmt.Appendf(nil, "value %d of partition %d", i, partition)}
	}
	return records
}

func dutyProduceConsume(t *testing.T, s scene) {
	s.roundTrip(t, produceOptions{}, numbered(0, 100)...)
	s.roundTrip(t, produceOptions{}, numbered(0, 1)...)
}

func dutyIdempotence(t *testing.T, s scene) {
	if s.kind.noIdempotence {
		t.Skip("the library has no idempotent producer")
	}
	for range 3 { // three producers with ids of their own
		s.roundTrip(t, produceOptions{idempotent: true}, numbered(0, 100)...)
	}
}

func dutyCodecs(t *testing.T, s scene) {
	for i := range codecNames {
		c := codec(i)
		t.Run(c.String(), func(t *testing.T) {
			if c == codecZstd && s.kind.noZstd {
				t.Skip("zstd is younger than this version")
			}
			begin := endOffset(t, s.broker, s.topic, 0)
			s.roundTrip(t, produceOptions{codec: c}, numbered(0, 200)...)
			batch := fetchPartition(t, harness.Dial(t, s.broker.Addr), s.topic, 0, begin).RecordBatches
			const attributesAt = 22
			if got := codec(batch[attributesAt] & 7); got != c {
				t.Errorf("the batch was stored with codec %v", got)
			}
		})
	}
}

// incompressible returns n bytes that no codec makes smaller.
func incompressible(n int) []byte {
	b := make([]byte, n)
	x := uint64(88172645463325252)
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x)
	}
	return b
}

// defaultLimit is the default of max.message.bytes; the room is for the parts of a batch around one value.
const (
	defaultLimit = 1048588
	batchRoom    = 100
)

func dutySizes(t *testing.T, s scene) {
	for _, size := range []int{0, 1, 1000, 65536, defaultLimit - batchRoom} {
		s.roundTrip(t, produceOptions{}, record{key: []byte("k"), value: incompressible(size)})
	}
}

func dutyRaisedLimit(t *testing.T, s scene) {
	s.roundTrip(t, produceOptions{}, record{value: incompressible(2_900_000)}, record{value: []byte("small")})
}

func dutyTooLarge(t *testing.T, s scene) {
	err := s.produce(testContext(t), s.topic, produceOptions{}, []record{{value: incompressible(defaultLimit)}})
	if !s.isTooLarge(err) {
		t.Fatalf("producing a record above the limit: %v, want MESSAGE_TOO_LARGE", err)
	}
	s.roundTrip(t, produceOptions{}, numbered(0, 1)...) // at offset 0 still
}

func dutyHeaders(t *testing.T, s scene) {
	s.roundTrip(t, produceOptions{},
		record{value: []byte("v"), headers: []header{{"a", []byte("1")}, {"b", []byte{0, 255}}, {"a", []byte("again")}}},
		record{value: []byte("v"), headers: []header{{"", []byte("no name")}, {"empty", []byte{}}, {"größe", []byte("ü")}}},
		record{value: []byte("v")},
	)
}

func dutyNulls(t *testing.T, s scene) {
	empty := []byte{}
	s.roundTrip(t, produceOptions{},
		record{key: nil, value: []byte("null key")},
		record{key: []byte("null value"), value: nil},
		record{key: nil, value: nil},
		record{key: empty, value: empty},
	)
}

// day is a past day, in the milliseconds that records have.
var day = time.UnixMilli(time.Date(2024, 2, 29, 12, 0, 0, 0, time.UTC).UnixMilli())

func dutyTimestamps(t *testing.T, s scene) {
	var records []record
	for i, delta := range []time.Duration{0, time.Millisecond, time.Hour, -time.Hour, 24 * time.Hour} {
		records = append(records, record{value: fmt.Append(nil, i), time: day.Add(delta)})
	}
	s.roundTrip(t, produceOptions{}, records...)
}

func dutyPositions(t *testing.T, s scene) {
	const n = 20
	records := numbered(0, n)
	for i := range records {
		records[i].time = day.Add(time.Duration(i) * time.Minute)
	}
	s.mustProduce(t, produceOptions{codec: 1}, records[:n/2]...)
	s.mustProduce(t, produceOptions{}, records[n/2:]...)
	for _, c := range []struct {
		name string
		from position
		want int64
	}{
		{"earliest", earliest, 0},
		{"latest", latest, n},
		{"time before all", atTime(day.Add(-time.Hour)), 0},
		{"time of a record", atTime(day.Add(3 * time.Minute)), 3},
		{"time between records", atTime(day.Add(3*time.Minute + time.Second)), 4},
		{"time in the second batch", atTime(day.Add(15 * time.Minute)), 15},
	} {
		got, err := s.offset(testContext(t), s.topic, 0, c.from)
		if err != nil || got != c.want {
			t.Errorf("%s: offset %d %v, want %d", c.name, got, err, c.want)
		}
		if c.want < n {
			s.check(t, s.mustConsume(t, 0, c.from, n-int(c.want)), records[c.want:], c.want)
		}
	}
	s.check(t, s.mustConsume(t, 0, atOffset(7), 1), records[7:8], 7)
}

// dutyLatest starts a consumer at the end while records keep coming, for nothing tells when it has found the end.
func dutyLatest(t *testing.T, s scene) {
	s.mustProduce(t, produceOptions{}, numbered(0, 5)...)
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	stopped := make(chan error, 1)
	go func() {
		var err error
		for tick := time.Tick(50 * time.Millisecond); err == nil && ctx.Err() == nil; <-tick {
			err = s.produce(ctx, s.topic, produceOptions{}, []record{{value: []byte("new")}})
		}
		if ctx.Err() != nil {
			err = nil
		}
		stopped <- err
	}()
	got := s.mustConsume(t, 0, latest, 2)
	cancel()
	if err := <-stopped; err != nil {
		t.Fatalf("producing: %v", err)
	}
	if got[0].offset < 5 || got[1].offset != got[0].offset+1 || string(got[0].value) != "new" {
		t.Errorf("a consumer at the end got offsets %d and %d, value %q", got[0].offset, got[1].offset, got[0].value)
	}
}

func dutyOrder(t *testing.T, s scene) {
	const n = 250
	parts := make([][]record, scenePartitions)
	var mixed []record
	for p := range parts {
		parts[p] = numbered(int32(p), n)
	}
	for i := range n {
		for p := range parts {
			mixed = append(mixed, parts[p][i])
		}
	}
	s.mustProduce(t, produceOptions{}, mixed...)
	for p := range parts {
		s.check(t, s.mustConsume(t, int32(p), earliest, n), parts[p], 0)
	}
}

func dutyAutoCreate(t *testing.T, s scene) {
	s.mustProduce(t, produceOptions{autoCreate: true}, numbered(0, 3)...)
	s.check(t, s.mustConsume(t, 0, earliest, 3), numbered(0, 3), 0)
	topics, err := newAdmin(t, s.broker.Addr).ListTopics(testContext(t), s.topic)
	if err != nil || len(topics[s.topic].Partitions) != 3 {
		t.Errorf("the topic has %d partitions, want the 3 of --default-partitions; %v", len(topics[s.topic].Partitions), err)
	}
}

func dutyStream(t *testing.T, s scene) {
	s.topic = "clients/" + s.topic + "/c"
	s.mustProduce(t, produceOptions{autoCreate: true, idempotent: !s.kind.noIdempotence}, numbered(0, 50)...)
	s.check(t, s.mustConsume(t, 0, earliest, 50), numbered(0, 50), 0)
	if got, err := s.offset(testContext(t), s.topic, 0, latest); err != nil || got != 50 {
		t.Errorf("the end of the stream is %d %v, want 50", got, err)
	}
}

func dutyManyStreams(t *testing.T, s scene) {
	base := s.topic
	var errs []error
	for i := range 20 {
		s.topic = fmt.Sprintf("clients/%s/%d", base, i)
		errs = append(errs, s.produce(testContext(t), s.topic, produceOptions{autoCreate: true}, numbered(0, i+1)))
	}
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		s.topic = fmt.Sprintf("clients/%s/%d", base, i)
		s.check(t, s.mustConsume(t, 0, earliest, i+1), numbered(0, i+1), 0)
	}
}
