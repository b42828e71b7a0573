package broker

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/objstore/faulty"
	"github.com/brookletmq/brooklet/streamstore"
)

// dataBroker is a broker over a real store whose bucket and disk are in memory.
type dataBroker struct {
	*adminBroker
	bucket *faulty.Bucket
}

type dataOptions struct {
	broker Options
	store  streamstore.Options
}

// newDataBroker opens a store and a broker; edit may change their options.
func newDataBroker(t testing.TB, edit func(*dataOptions)) *dataBroker {
	t.Helper()
	return openDataBroker(t, newMachine(), edit)
}

func openDataBroker(t testing.TB, m *machine, edit func(*dataOptions)) *dataBroker {
	t.Helper()
	bucket := faulty.New(m.bucket, 1)
	opts := dataOptions{
		broker: Options{AdvertisedHost: "127.0.0.1", AdvertisedPort: 9092, AutoCreateTopics: true},
		store:  streamstore.Options{Dir: "data", FS: m.disk, Bucket: bucket, MinFreeBytes: -1},
	}
	if edit != nil {
		edit(&opts)
	}
	store, err := streamstore.Open(context.Background(), opts.store)
	wantNoError(t, err)
	opts.broker.Store = store
	b, err := New(context.Background(), opts.broker)
	wantNoError(t, err)
	stop := sync.OnceFunc(func() {
		b.Close()
		wantNoError(t, store.Close())
	})
	t.Cleanup(stop)
	return &dataBroker{adminBroker: &adminBroker{Broker: b, t: t, stop: stop}, bucket: bucket}
}

// createTopic makes a topic with configs (name, value, ...).
func (d *dataBroker) createTopic(name string, partitions int32, configs ...string) *topic {
	d.t.Helper()
	d.mustCreate(name, partitions, configs...)
	return d.topicNamed(name)
}

func (d *dataBroker) topicNamed(name string) *topic {
	d.t.Helper()
	made, kerr := d.topics.byName(name)
	if kerr != nil {
		d.t.Fatal(kerr)
	}
	return made
}

// start hands a request to the broker as it comes off the wire.
func (d *dataBroker) start(req kmsg.Request, version int16) (kafkaproto.Reply, error) {
	d.t.Helper()
	req.SetVersion(version)
	body := kmsg.RequestForKey(req.Key())
	body.SetVersion(version)
	wantNoError(d.t, body.ReadFrom(req.AppendTo(nil)))
	return d.Handle(context.Background(), &kafkaproto.Request{
		Conn:       &kafkaproto.ConnInfo{},
		Key:        req.Key(),
		Version:    version,
		Body:       body,
		Size:       len(req.AppendTo(nil)),
		ReceivedAt: time.Now(),
	})
}

// finish waits for a reply and returns it as the client decodes it.
func finish[R kmsg.Response](t testing.TB, reply kafkaproto.Reply, version int16) R {
	t.Helper()
	decoded, err := await[R](t.Context(), reply, version)
	wantNoError(t, err)
	return decoded
}

func await[R kmsg.Response](ctx context.Context, reply kafkaproto.Reply, version int16) (R, error) {
	var none R
	resp, err := reply(ctx)
	if err != nil {
		return none, err
	}
	if r, ok := resp.(kafkaproto.Releaser); ok {
		defer r.Release()
	}
	resp.SetVersion(version)
	decoded := resp.RequestKind().ResponseKind().(R)
	decoded.SetVersion(version)
	return decoded, decoded.ReadFrom(resp.AppendTo(nil))
}

// call sends a request and waits for its reply.
func call[R kmsg.Response](d *dataBroker, req kmsg.Request, version int16) R {
	d.t.Helper()
	return ask[R](d.adminBroker, version, req)
}

// fetchInBackground sends a fetch and returns where its reply will arrive.
func (d *dataBroker) fetchInBackground(req *kmsg.FetchRequest, version int16) <-chan *kmsg.FetchResponse {
	d.t.Helper()
	reply, err := d.start(req, version)
	wantNoError(d.t, err)
	done := make(chan *kmsg.FetchResponse, 1)
	go func() {
		resp, err := await[*kmsg.FetchResponse](d.t.Context(), reply, version)
		if err != nil {
			d.t.Error(err)
		}
		done <- resp
	}()
	return done
}

// makeBatch builds a batch.
func makeBatch(t testing.TB, opts kafkaproto.BatchOptions, records ...kafkaproto.Record) []byte {
	t.Helper()
	b := kafkaproto.NewBuilder(opts)
	for _, r := range records {
		wantNoError(t, b.Append(r))
	}
	batch, err := b.Build()
	wantNoError(t, err)
	return batch
}

// valuesAt returns n records of size bytes, stamped now.
func valuesAt(now time.Time, n, size int) []kafkaproto.Record {
	records := make([]kafkaproto.Record, n)
	for i := range records {
		records[i] = kafkaproto.Record{Timestamp: now.UnixMilli(), Value: make([]byte, size)}
	}
	return records
}

func (d *dataBroker) batchOf(n, size int) []byte {
	return makeBatch(d.t, kafkaproto.BatchOptions{}, valuesAt(time.Now(), n, size)...)
}

// at is a partition of a topic in a request.
type at struct {
	topic     string
	id        topicID
	partition int32
}

func produceRequest(acks int16, where at, batches ...[]byte) *kmsg.ProduceRequest {
	req := kmsg.NewPtrProduceRequest()
	req.Acks = acks
	req.TimeoutMillis = 10_000
	for i, b := range batches {
		addProduce(req, at{where.topic, where.id, where.partition + int32(i)}, b)
	}
	return req
}

func addProduce(req *kmsg.ProduceRequest, where at, batch []byte) {
	rp := kmsg.NewProduceRequestTopicPartition()
	rp.Partition, rp.Records = where.partition, batch
	if n := len(req.Topics); n > 0 && req.Topics[n-1].Topic == where.topic && req.Topics[n-1].TopicID == where.id {
		req.Topics[n-1].Partitions = append(req.Topics[n-1].Partitions, rp)
		return
	}
	rt := kmsg.NewProduceRequestTopic()
	rt.Topic, rt.TopicID = where.topic, where.id
	rt.Partitions = []kmsg.ProduceRequestTopicPartition{rp}
	req.Topics = append(req.Topics, rt)
}

// produce appends one batch with acks=all and requires that it works.
func (d *dataBroker) produce(where at, batch []byte) kmsg.ProduceResponseTopicPartition {
	d.t.Helper()
	version := int16(9)
	if where.topic == "" {
		version = 13
	}
	resp := call[*kmsg.ProduceResponse](d, produceRequest(acksAll, where, batch), version)
	rp := resp.Topics[0].Partitions[0]
	wantZero(d.t, rp.ErrorCode, "%v", rp.ErrorMessage)
	return rp
}

// fetchOf asks for partitions, each from its offset on.
type fetchOf struct {
	at
	offset   int64
	maxBytes int32 // 0: 1 MiB
	epoch    int32
}

// fetchRequest asks for an answer at once, outside any session.
func fetchRequest(parts ...fetchOf) *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.MaxWaitMillis, req.MinBytes, req.MaxBytes = 0, 1, 50<<20
	req.SessionID, req.SessionEpoch = 0, sessionEpochFinal
	for _, p := range parts {
		rp := kmsg.NewFetchRequestTopicPartition()
		rp.Partition, rp.FetchOffset, rp.PartitionMaxBytes = p.partition, p.offset, p.maxBytes
		rp.CurrentLeaderEpoch = p.epoch
		if rp.PartitionMaxBytes == 0 {
			rp.PartitionMaxBytes = 1 << 20
		}
		if n := len(req.Topics); n > 0 && req.Topics[n-1].Topic == p.topic && req.Topics[n-1].TopicID == p.id {
			req.Topics[n-1].Partitions = append(req.Topics[n-1].Partitions, rp)
			continue
		}
		rt := kmsg.NewFetchRequestTopic()
		rt.Topic, rt.TopicID = p.topic, p.id
		rt.Partitions = []kmsg.FetchRequestTopicPartition{rp}
		req.Topics = append(req.Topics, rt)
	}
	return req
}

func from(topic string, partition int32, offset int64) fetchOf {
	return fetchOf{at: at{topic: topic, partition: partition}, offset: offset}
}

func waiting(req *kmsg.FetchRequest, maxWait time.Duration, minBytes int32) *kmsg.FetchRequest {
	req.MaxWaitMillis, req.MinBytes = int32(maxWait/time.Millisecond), minBytes
	return req
}

// inSession makes a request part of a session.
func inSession(req *kmsg.FetchRequest, id, epoch int32) *kmsg.FetchRequest {
	req.SessionID, req.SessionEpoch = id, epoch
	return req
}

// partitionsOf returns the partitions of a reply by topic name and number.
func partitionsOf(resp *kmsg.FetchResponse) map[at]kmsg.FetchResponseTopicPartition {
	m := map[at]kmsg.FetchResponseTopicPartition{}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			m[at{t.Topic, t.TopicID, p.Partition}] = p
		}
	}
	return m
}

func recordBytes(resp *kmsg.FetchResponse) (n int) {
	for _, p := range partitionsOf(resp) {
		n += len(p.RecordBatches)
	}
	return n
}

// offsetsIn returns base and last offset of each batch.
func offsetsIn(t testing.TB, records []byte) (ranges [][2]int64) {
	t.Helper()
	for len(records) > 0 {
		batch, rest, err := kafkaproto.NextBatch(records)
		wantNoError(t, err)
		wantEqual(t, batch.CRC(), batch.ComputeCRC())
		ranges = append(ranges, [2]int64{batch.BaseOffset(), batch.LastOffset()})
		records = rest
	}
	return ranges
}

// reads returns how many partitions were looked at for fetches so far.
func (d *dataBroker) reads() int {
	return int(testutil.ToFloat64(d.fetches.m.partitionReads))
}
